//! What is done with a file that was found by its name, while others put another file in its place: a
//! name that is replaced by `rename` is never missing. So whoever finds that the file went away between
//! his look at the name and what he does looks again, as long as a request may take at all.

use wire::errno::{Errno, Result};
use wire::{Attributes, Credentials};

use crate::Client;
use crate::path::{At, Follow, Outcome, PathBuffer};
use crate::request::Patience;
use crate::walk::{Look, Walk};

/// Looks without a pause. More are only needed while a name is replaced all the time, or while a daemon
/// stands still in the middle of a removal.
const AT_ONCE: u32 = 16;
/// Pause before each further look.
const PAUSE_MICROS: u64 = 100;

/// Looks at one name.
pub(crate) struct Looks {
    count: u32,
    patience: Patience,
}

impl Looks {
    pub(crate) fn new(client: &Client) -> Looks {
        Looks { count: 0, patience: Patience::new(client.timeout_micros()) }
    }

    /// Before another look.
    ///
    /// # Errors
    /// `EIO` if there were looks for longer than a request may take.
    #[cold]
    pub(crate) fn again(&mut self) -> Result<()> {
        self.count = self.count.saturating_add(1);
        if self.count < AT_ONCE { Ok(()) } else { self.patience.sleep(PAUSE_MICROS) }
    }
}

impl Client {
    /// Lets `with` do something with the file that a path names. `ESTALE` from it means that the file is
    /// gone: then it gets what the name leads to now.
    ///
    /// # Errors
    /// As `find`, and what `with` says.
    #[inline]
    pub(crate) fn with_found<R>(
        &self,
        at: At<'_>,
        follow: Follow,
        who: &Credentials,
        buffer: &mut PathBuffer,
        mut with: impl FnMut(&Attributes) -> Result<R>,
    ) -> Result<Outcome<R>> {
        let look = (follow, Look::Surely);
        self.with_walked(at, look, who, buffer, |walk| with(walk.existing()?))
    }

    /// As `with_found`, with all that the walk says.
    ///
    /// # Errors
    /// As `with_found`.
    #[inline]
    pub(crate) fn with_walked<R>(
        &self,
        at: At<'_>,
        (follow, look): (Follow, Look),
        who: &Credentials,
        buffer: &mut PathBuffer,
        mut with: impl FnMut(&Walk<'_>) -> Result<R>,
    ) -> Result<Outcome<R>> {
        let mut looks = None;
        loop {
            let walked = self.walk(at, follow, look, who, buffer)?;
            match walked.and(|walk| with(&walk)) {
                Err(Errno::ESTALE) => looks.get_or_insert_with(|| Looks::new(self)).again()?,
                done => return done,
            }
        }
    }
}
