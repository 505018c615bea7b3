//! The primitives of `Noise_NNpsk0_25519_AESGCM_SHA256`, by ring, for the library `snow`.
//!
//! The library has ready-made ones, by other versions of crates that are in this program already.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use ring::digest;
use ring::rand::{SecureRandom, SystemRandom};
use snow::Error;
use snow::error::StateProblem;
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::CryptoResolver;
use snow::types::{Cipher, Dh, Hash, Random};
use std::sync::{Mutex, PoisonError};

/// The pattern: no static keys, because all daemons of an instance have the same secret, which is
/// mixed in first; ephemeral keys, so that a secret that leaks later opens no recorded connection.
pub(crate) const PATTERN: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";
const KEY_BYTES: usize = 32;
const TAG_BYTES: usize = 16;

/// Provides the primitives.
pub(crate) struct Ring;

impl CryptoResolver for Ring {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(SystemBytes(SystemRandom::new())))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        match choice {
            DHChoice::Curve25519 => Some(Box::<Ephemeral>::default()),
            DHChoice::Curve448 => None,
        }
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        match choice {
            HashChoice::SHA256 => Some(Box::new(Sha256(digest::Context::new(&digest::SHA256)))),
            _ => None,
        }
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        match choice {
            CipherChoice::AESGCM => Some(Box::<AesGcm>::default()),
            CipherChoice::ChaChaPoly => None,
        }
    }
}

struct SystemBytes(SystemRandom);

impl Random for SystemBytes {
    fn try_fill_bytes(&mut self, to: &mut [u8]) -> Result<(), Error> {
        self.0.fill(to).map_err(|_| Error::Rng)
    }
}

/// An ephemeral key pair. Its private key serves once, which is as often as the pattern needs it.
#[derive(Default)]
struct Ephemeral {
    private: Mutex<Option<EphemeralPrivateKey>>,
    public: [u8; KEY_BYTES],
}

impl Dh for Ephemeral {
    fn name(&self) -> &'static str {
        "25519"
    }

    fn pub_len(&self) -> usize {
        KEY_BYTES
    }

    fn priv_len(&self) -> usize {
        KEY_BYTES
    }

    // Only for static and for fixed keys, of which the pattern has none: ring hands out no private
    // key and takes none.
    fn set(&mut self, _: &[u8]) {
        self.private = Mutex::new(None);
    }

    fn privkey(&self) -> &[u8] {
        &[]
    }

    fn generate(&mut self, _: &mut dyn Random) -> Result<(), Error> {
        let private = EphemeralPrivateKey::generate(&X25519, &SystemRandom::new());
        let private = private.map_err(|_| Error::Rng)?;
        let public = private.compute_public_key().map_err(|_| Error::Dh)?;
        self.public = public.as_ref().try_into().map_err(|_| Error::Dh)?;
        self.private = Mutex::new(Some(private));
        Ok(())
    }

    fn pubkey(&self) -> &[u8] {
        &self.public
    }

    fn dh(&self, theirs: &[u8], out: &mut [u8]) -> Result<(), Error> {
        let private = self.private.lock().unwrap_or_else(PoisonError::into_inner).take();
        let private = private.ok_or(Error::Dh)?;
        let theirs = theirs.get(..KEY_BYTES).ok_or(Error::Dh)?;
        let out = out.get_mut(..KEY_BYTES).ok_or(Error::Dh)?;
        // Fails for points whose product is zero whatever the private key is.
        agree_ephemeral(private, &UnparsedPublicKey::new(&X25519, theirs), |shared| {
            out.copy_from_slice(shared);
        })
        .map_err(|_| Error::Dh)
    }
}

struct Sha256(digest::Context);

impl Hash for Sha256 {
    fn name(&self) -> &'static str {
        "SHA256"
    }

    fn block_len(&self) -> usize {
        64
    }

    fn hash_len(&self) -> usize {
        32
    }

    fn reset(&mut self) {
        self.0 = digest::Context::new(&digest::SHA256);
    }

    fn input(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn result(&mut self, out: &mut [u8]) {
        let hash = self.0.clone().finish();
        out.iter_mut().zip(hash.as_ref()).for_each(|(to, from)| *to = *from);
    }
}

#[derive(Default)]
struct AesGcm(Option<LessSafeKey>);

fn nonce(number: u64) -> Nonce {
    let [a, b, c, d, e, f, g, h] = number.to_be_bytes();
    Nonce::assume_unique_for_key([0, 0, 0, 0, a, b, c, d, e, f, g, h])
}

impl Cipher for AesGcm {
    fn name(&self) -> &'static str {
        "AESGCM"
    }

    fn set(&mut self, key: &[u8; KEY_BYTES]) {
        self.0 = UnboundKey::new(&AES_256_GCM, key).ok().map(LessSafeKey::new);
    }

    // `snow` keeps room for the tag and seals only with a key that it has set. If it did not, the
    // other side refuses the zeros that are sent then.
    fn encrypt(&self, number: u64, authenticated: &[u8], plain: &[u8], out: &mut [u8]) -> usize {
        let length = plain.len() + TAG_BYTES;
        let Some((text, tag)) = out.split_at_mut_checked(plain.len()) else { return length };
        text.copy_from_slice(plain);
        let aad = Aad::from(authenticated);
        let sealed = self
            .0
            .as_ref()
            .and_then(|key| key.seal_in_place_separate_tag(nonce(number), aad, text).ok());
        match sealed {
            Some(own) => tag.iter_mut().zip(own.as_ref()).for_each(|(to, from)| *to = *from),
            None => text.fill(0),
        }
        length
    }

    fn decrypt(
        &self,
        number: u64,
        authenticated: &[u8],
        sealed: &[u8],
        out: &mut [u8],
    ) -> Result<usize, Error> {
        let key = self.0.as_ref().ok_or(Error::State(StateProblem::MissingKeyMaterial))?;
        let mut bytes = sealed.to_vec();
        let plain = key
            .open_in_place(nonce(number), Aad::from(authenticated), &mut bytes)
            .map_err(|_| Error::Decrypt)?;
        out.get_mut(..plain.len()).ok_or(Error::Decrypt)?.copy_from_slice(plain);
        Ok(plain.len())
    }
}
