//! `rt_sigaction`: what the program asks for is recorded, and its handlers are entered through this
//! library (`entry::signals`).

use crate::arch::raw;
use crate::calls::{Answer, failed, native, user};
use crate::entry::process::owner;
use crate::entry::signals::{self, Action};
use wire::errno::Errno;

/// Length of the kernel's signal sets.
const SET_BYTES: u64 = 8;

/// `rt_sigaction`: signal, new action, old action, length of its sets.
#[must_use]
pub fn set_action(a: [u64; 6]) -> Answer {
    let [signal, new_at, old_at, set_bytes, ..] = a;
    if set_bytes != SET_BYTES {
        return None;
    }
    let mut old = Action::default();
    // The actions of a child of vfork are its own, but the record is its parent's.
    let answer = if raw::getpid() == owner() {
        let new = match new_at {
            0 => None,
            _ => match user::get(new_at) {
                Ok(new) => Some(new),
                Err(errno) => return Some(failed(errno)),
            },
        };
        signals::set_action(signal, new, &mut old)
    } else {
        let old_to = core::ptr::from_mut(&mut old).addr() as u64;
        let number = libc::SYS_rt_sigaction;
        let answer = native::call(number, [signal, new_at, old_to, set_bytes, 0, 0]);
        signals::as_asked(signal, &mut old);
        answer
    };
    if answer == 0 && old_at != 0 && user::put(old_at, old).is_err() {
        return Some(failed(Errno::EFAULT));
    }
    Some(answer)
}
