//! TLS to a server, by rustls. An address says what it asks of the server, in the words of libpq:
//!
//! - `sslmode=disable`: no TLS.
//! - `sslmode=prefer`, as without a word: TLS if the server has it; no certificate is checked.
//! - `sslmode=require`: TLS or nothing. No certificate is checked, so a host in between can be the
//!   server.
//! - `sslmode=verify-full`: the certificate is of this host, signed by one of the authorities in the file
//!   `sslrootcert`, else in `~/.postgresql/root.crt`; `sslrootcert=system` are those of the host.

use crate::error::HistoryError;
use postgres::config::SslMode;
use postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use tokio_rustls::{TlsConnector, client};

/// Files in which systems keep the authorities that they trust.
const SYSTEM_ROOTS: [&str; 3] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
];

/// The terms of a connection, as its address has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TlsTerms {
    pub(super) mode: SslMode,
    is_verified: bool,
    roots: Option<PathBuf>,
}

/// The address without what it says of TLS, and that.
///
/// # Errors
/// It asks for a mode that there is not.
pub(super) fn terms(address: &str) -> Result<(String, TlsTerms), HistoryError> {
    let mut terms = TlsTerms { mode: SslMode::Prefer, is_verified: false, roots: None };
    let Some((before, query)) = address.split_once('?') else {
        return Ok((address.to_owned(), terms));
    };
    let mut others = Vec::new();
    for pair in query.split('&') {
        match pair.split_once('=') {
            Some(("sslmode", mode)) => {
                (terms.mode, terms.is_verified) = match mode {
                    "disable" => (SslMode::Disable, false),
                    "prefer" => (SslMode::Prefer, false),
                    "require" => (SslMode::Require, false),
                    "verify-full" => (SslMode::Require, true),
                    _ => {
                        let why = "sslmode is disable, prefer, require or verify-full";
                        return Err(HistoryError::Other(why.to_owned()));
                    }
                }
            }
            Some(("sslrootcert", path)) => {
                let path = percent_encoding::percent_decode_str(path).decode_utf8_lossy();
                terms.roots = Some(PathBuf::from(path.into_owned()));
            }
            _ => others.push(pair),
        }
    }
    let rest = if others.is_empty() { String::new() } else { format!("?{}", others.join("&")) };
    Ok((format!("{before}{rest}"), terms))
}

/// The authorities by which a certificate is checked.
fn roots(named: Option<&Path>) -> Result<RootCertStore, HistoryError> {
    let home =
        || std::env::var_os("HOME").map(|home| Path::new(&home).join(".postgresql/root.crt"));
    let path = match named {
        Some(path) if path == Path::new("system") => {
            SYSTEM_ROOTS.iter().map(PathBuf::from).find(|path| path.exists())
        }
        Some(path) => Some(path.to_owned()),
        None => home(),
    };
    let path =
        path.ok_or_else(|| HistoryError::Other("no certificates: set sslrootcert".into()))?;
    let failed = |why: String| {
        HistoryError::Other(format!("cannot read the certificates: {}: {why}", path.display()))
    };
    let mut roots = RootCertStore::empty();
    for one in CertificateDer::pem_file_iter(&path).map_err(|error| failed(error.to_string()))? {
        let one = one.map_err(|error| failed(error.to_string()))?;
        roots.add(one).map_err(|error| failed(error.to_string()))?;
    }
    match roots.is_empty() {
        true => Err(failed("there is none in it".to_owned())),
        false => Ok(roots),
    }
}

/// Makes connections as an address asks.
#[derive(Clone)]
pub(super) struct Tls(Arc<ClientConfig>);

impl Tls {
    /// # Errors
    /// The authorities cannot be read.
    pub(super) fn new(terms: &TlsTerms) -> Result<Tls, HistoryError> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| HistoryError::Other(error.to_string()))?;
        let config = match terms.is_verified {
            true => builder.with_root_certificates(roots(terms.roots.as_deref())?),
            false => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider))),
        };
        Ok(Tls(Arc::new(config.with_no_client_auth())))
    }
}

/// Takes any certificate, as `sslmode=require` says; signatures are checked, so that the bytes are those
/// of one peer.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _others: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let schemes = &self.0.signature_verification_algorithms;
        tokio_rustls::rustls::crypto::verify_tls12_signature(message, certificate, signed, schemes)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let schemes = &self.0.signature_verification_algorithms;
        tokio_rustls::rustls::crypto::verify_tls13_signature(message, certificate, signed, schemes)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> MakeTlsConnect<S> for Tls {
    type Stream = Encrypted<S>;
    type TlsConnect = HostTls;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> io::Result<HostTls> {
        // A socket of the host has no name, and no TLS.
        let name = if host.is_empty() { "localhost" } else { host };
        let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
        Ok(HostTls { config: Arc::clone(&self.0), name })
    }
}

/// A connection to one host.
pub(super) struct HostTls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> TlsConnect<S> for HostTls {
    type Stream = Encrypted<S>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Encrypted<S>>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        let connecting = TlsConnector::from(self.config).connect(self.name, stream);
        Box::pin(async { connecting.await.map(Encrypted) })
    }
}

/// An encrypted stream.
pub(super) struct Encrypted<S>(client::TlsStream<S>);

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for Encrypted<S> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Encrypted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, to)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Encrypted<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_says_what_it_asks_of_the_connection() {
        let of = |query: &str| terms(&format!("postgres://me@db/site{query}"));
        let mode = |query: &str| of(query).map(|(_, terms)| (terms.mode, terms.is_verified));
        assert_eq!(mode(""), Ok((SslMode::Prefer, false)));
        assert_eq!(mode("?sslmode=disable"), Ok((SslMode::Disable, false)));
        assert_eq!(mode("?sslmode=require"), Ok((SslMode::Require, false)));
        assert!(mode("?sslmode=verify-ca").is_err() && mode("?sslmode=").is_err());
        let (rest, terms) =
            of("?connect_timeout=3&sslmode=verify-full&sslrootcert=/a%20b/root.crt").expect("read");
        assert_eq!(rest, "postgres://me@db/site?connect_timeout=3");
        assert!(terms.is_verified && terms.roots.as_deref() == Some(Path::new("/a b/root.crt")));
    }

    #[test]
    fn certificates_that_cannot_be_read_are_named() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("root.crt");
        let why = || roots(Some(&path)).map(|_| ()).unwrap_err().to_string();
        assert!(why().contains("root.crt: "), "{}", why());
        std::fs::write(&path, "no certificate").unwrap();
        assert!(why().ends_with("there is none in it"), "{}", why());
    }
}
