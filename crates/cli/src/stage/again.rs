//! What found no room while other files were copied: one of those may have taken all of it, found none
//! for its rest, and be removed again. So it is copied again after all others, alone, the smallest first,
//! until there is no room for one.

use super::copy::Kit;
use super::twins::{Place, open};
use super::{Name, Pair, Stage};
use below::{Kind, Node, Trouble};
use rustix::io::Errno;
use std::sync::{Arc, Mutex, PoisonError};

/// Names that are copied again: more than that are not worth it.
const AGAIN_MAX: usize = 1 << 16;

/// Names that found no room, and the errors that they got.
#[derive(Default)]
pub(super) struct Again {
    names: Mutex<Vec<(Place, Trouble)>>,
}

fn is_room(trouble: &Trouble) -> bool {
    let errno = match trouble {
        Trouble::Write(error) => Errno::from_io_error(error),
        _ => None,
    };
    matches!(errno, Some(Errno::NOSPC | Errno::DQUOT))
}

impl Stage {
    /// A name is not copied, for this reason.
    pub(super) fn fail(&self, name: &Name, trouble: Trouble) {
        if is_room(&trouble) {
            let mut names = self.again.names.lock().unwrap_or_else(PoisonError::into_inner);
            if names.len() < AGAIN_MAX {
                return names.push((Place::of(name), trouble));
            }
        }
        self.tally.fail(&name.shown(), &trouble);
    }

    /// Copies again what found no room, when nothing else is copied.
    pub(super) fn copy_again(&self, kit: &mut Kit) {
        let names =
            std::mem::take(&mut *self.again.names.lock().unwrap_or_else(PoisonError::into_inner));
        let mut last = None;
        let mut sized: Vec<(u64, (Place, Trouble))> = names
            .into_iter()
            .map(|(place, trouble)| {
                let pair = open(&place.top, &place.path, &mut last);
                let node = pair.and_then(|pair| pair.from.node(&place.name).map_err(Trouble::Read));
                (node.map_or(u64::MAX, |node| node.size), (place, trouble))
            })
            .collect();
        sized.sort_by_key(|&(size, _)| size);
        let mut is_full = false;
        for (size, (place, trouble)) in sized {
            let outcome =
                if is_full { Err(trouble) } else { self.copy_alone(&place, &mut last, kit) };
            if let Err(trouble) = outcome {
                is_full |= is_room(&trouble) && size > 0;
                self.tally.fail(&place.shown(), &trouble);
            }
        }
    }

    fn copy_alone(
        &self,
        place: &Place,
        last: &mut Option<Arc<Pair>>,
        kit: &mut Kit,
    ) -> Result<(), Trouble> {
        let pair = open(&place.top, &place.path, last)?;
        let node = pair.from.node(&place.name).map_err(Trouble::Read)?;
        let name = place.name(pair, node.kind);
        if node.kind != Kind::File {
            return self.make(&name);
        }
        let from = name.pair.from.file(&name.name).map_err(Trouble::Read)?;
        let node = Node::of(&from).map_err(Trouble::Read)?;
        check_room(&name, &node)?;
        self.copy_now(name, from, node, kit)?;
        self.twins.landed(&node);
        Ok(())
    }
}

/// A large file is not copied once more to find that there is no room for its end.
fn check_room(name: &Name, node: &Node) -> Result<(), Trouble> {
    if node.may_have_holes() {
        return Ok(());
    }
    // What can not be asked is tried.
    let is_short = rustix::fs::fstatvfs(&*name.pair.to)
        .is_ok_and(|space| space.f_bavail.saturating_mul(space.f_frsize) < node.size);
    if is_short { Err(Trouble::Write(Errno::NOSPC.into())) } else { Ok(()) }
}
