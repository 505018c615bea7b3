//! How many requests of a user's job are carried out at once. Requests of the mount share the slots of
//! its sessions; a job whose requests wait for long (for their share, for another host) must leave slots
//! to others.
//!
//! A job may have one request more than there are free slots. So one job alone uses half of them, the
//! next one half of the rest, and there is always one for a job that has none.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Condvar, Mutex, PoisonError};
use wire::limits::SLOT_COUNT;

/// Jobs are told apart by so many numbers; two with the same number share a bound.
const ACCOUNT_COUNT: usize = 256;

/// The requests that are carried out, by job.
pub(crate) struct Admission {
    total: AtomicU32,
    accounts: [AtomicU32; ACCOUNT_COUNT],
    waiting: AtomicU32,
    order: Mutex<()>,
    left: Condvar,
}

/// A request that is carried out, until it is dropped.
pub(crate) struct AdmittedRequest<'a> {
    admission: &'a Admission,
    account: u8,
}

impl Drop for AdmittedRequest<'_> {
    fn drop(&mut self) {
        self.admission.leave(self.account);
        // With `enter`: one of both sees the other.
        if self.admission.waiting.load(SeqCst) != 0 {
            drop(self.admission.order.lock().unwrap_or_else(PoisonError::into_inner));
            self.admission.left.notify_all();
        }
    }
}

impl Default for Admission {
    fn default() -> Admission {
        Admission {
            total: AtomicU32::new(0),
            accounts: [const { AtomicU32::new(0) }; ACCOUNT_COUNT],
            waiting: AtomicU32::new(0),
            order: Mutex::new(()),
            left: Condvar::new(),
        }
    }
}

impl Admission {
    /// Waits until a request of a job may be carried out. The others of the job end in bounded time.
    pub(crate) fn enter(&self, account: u8) -> AdmittedRequest<'_> {
        if !self.try_enter(account) {
            let mut order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
            self.waiting.fetch_add(1, SeqCst);
            while !self.try_enter(account) {
                order = self.left.wait(order).unwrap_or_else(PoisonError::into_inner);
            }
            self.waiting.fetch_sub(1, SeqCst);
        }
        AdmittedRequest { admission: self, account }
    }

    fn try_enter(&self, account: u8) -> bool {
        let Some(of_account) = self.accounts.get(usize::from(account)) else { return true };
        let own = of_account.fetch_add(1, SeqCst) + 1;
        let total = self.total.fetch_add(1, SeqCst) + 1;
        let may = own <= 1 + (SLOT_COUNT as u32).saturating_sub(total);
        if !may {
            self.leave(account);
        }
        may
    }

    fn leave(&self, account: u8) {
        if let Some(of_account) = self.accounts.get(usize::from(account)) {
            of_account.fetch_sub(1, SeqCst);
            self.total.fetch_sub(1, SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn jobs_leave_slots_to_each_other() {
        let admission = Admission::default();
        let mut held = Vec::new();
        for (account, expected) in [(1, 32), (2, 16), (3, 8)] {
            let before = held.len();
            while admission.try_enter(account) {
                held.push(AdmittedRequest { admission: &admission, account });
            }
            assert_eq!(held.len() - before, expected);
        }
        // Any number of jobs: each has one.
        let others: Vec<_> = (4..200).map(|account| admission.enter(account)).collect();
        drop((held, others));
        assert_eq!(admission.total.load(SeqCst), 0);
    }

    #[test]
    fn a_request_that_waits_enters_when_another_of_its_job_leaves() {
        let admission = Admission::default();
        let mut held: Vec<_> = std::iter::repeat_with(|| admission.enter(7)).take(32).collect();
        assert!(!admission.try_enter(7));
        std::thread::scope(|scope| {
            let (entered, seen) = mpsc::channel();
            let admission = &admission;
            scope.spawn(move || {
                let own = admission.enter(7);
                entered.send(()).expect("heard");
                drop(own);
            });
            while admission.waiting.load(SeqCst) == 0 {
                std::thread::yield_now();
            }
            held.pop();
            seen.recv_timeout(Duration::from_secs(60)).expect("it entered");
        });
    }
}
