//! Requests for the target.

use crate::shared::Shared;
use crate::shared::reply::{ReplyTo, Sender};
use crate::target::driver::TargetLoop;
use crate::target::pending::RefuseFor;
use crate::target::space::accounts::decode_held;
use crate::target::space::preallocate::PreallocationScan;
use data::Input;
use wire::reply::Extent;
use wire::{Inode, JobWord, Request};

impl TargetLoop {
    /// Handles a request for the target, of this job.
    pub(crate) fn request(
        &mut self,
        shared: &Shared,
        (request, job): (&Request<'_>, JobWord),
        to: ReplyTo,
    ) {
        self.check_preallocated(shared, request);
        if let Request::Remove { inodes } = *request {
            self.performers.locations.forget_locations(inodes);
        }
        if !self.target.account_usage().is_on() {
            return self.carry_out_now(shared, (request, job), to, RefuseFor::None);
        }
        let (target, account_waits) = (&mut self.target, &mut self.performers.account_waits);
        account_waits.read_ledger(&shared.ledger, target);
        if let Some(to) = account_waits.hold_if_needed(shared, target, (request, job), to) {
            self.carry_out_now(shared, (request, job), to, RefuseFor::None);
        }
    }

    /// Carries out a request, even if others of its file are held.
    pub(crate) fn carry_out_now(
        &mut self,
        shared: &Shared,
        (request, job): (&Request<'_>, JobWord),
        to: ReplyTo,
        refuse_for: RefuseFor,
    ) {
        let pending = &mut self.performers.pending;
        let ticket = pending.register_request((request, job), to, refuse_for);
        if let Request::BeginWriteback { inode, .. } = *request {
            let states = &self.performers.devices.states;
            self.target.note_changed(inode, &|slot| states.is_clean(slot));
        }
        self.step(shared, Input::Request { ticket, request, job });
    }

    /// Carries out the held requests of a file, the first one with `first`.
    pub(crate) fn resume(&mut self, shared: &Shared, inode: Inode, first: RefuseFor) {
        let mut requests = self.performers.account_waits.take_held(inode);
        let mut refuse_for = first;
        while let Some((bytes, to)) = requests.pop_front() {
            match decode_held(&bytes) {
                Ok((request, job)) => {
                    self.carry_out_now(shared, (&request, job), to, refuse_for);
                }
                Err(_) => shared.refuse(to, wire::errno::Errno::EPROTO),
            }
            refuse_for = RefuseFor::None;
            self.performers.account_waits.hold_behind(inode, &mut requests);
        }
    }

    /// Withdraws requests of dead clients on other hosts, as reported by their daemons. Clients of
    /// this host are checked directly.
    pub(crate) fn withdraw(&mut self, shared: &Shared, is_gone: &dyn Fn(&Sender) -> bool) {
        self.withdraw_of(shared, &|to| matches!(to, ReplyTo::Peer(_, sender) if is_gone(sender)));
    }

    /// Withdraws requests whose reply goes to such a destination.
    pub(crate) fn withdraw_of(&mut self, shared: &Shared, is_such: &dyn Fn(&ReplyTo) -> bool) {
        for ticket in self.performers.pending.tickets_of(is_such) {
            self.step(shared, Input::Withdraw { ticket });
        }
    }

    /// Preallocated extents with data become part of their file, before a request about that file
    /// is handled.
    fn check_preallocated(&mut self, shared: &Shared, request: &Request<'_>) {
        let (Request::MapExtents { inode, .. }
        | Request::Read { inode, .. }
        | Request::Usage { inode, .. }
        | Request::BeginWriteback { inode, .. }
        | Request::SeekData { inode, .. }) = *request
        else {
            return;
        };
        self.performers.preallocation.note_request(&shared.net, request);
        let states = &self.performers.devices.states;
        let written = self.target.preallocated_of(inode);
        let written = written.filter(|extent: &Extent| !states.is_hole(extent));
        let extents: Vec<_> = written.map(|extent| (inode, extent.start)).collect();
        if !extents.is_empty() {
            self.step(shared, Input::Written { extents: &extents });
        }
    }

    /// Preallocates extents for files to be created. True if more may be needed soon.
    pub(crate) fn preallocate_files(&mut self, shared: &Shared) -> bool {
        let (devices, preallocation) =
            (&self.performers.devices, &mut self.performers.preallocation);
        if !preallocation.is_busy() {
            return false;
        }
        let (make, scan) = preallocation.next(&shared.net, &self.target, devices);
        self.apply_scan(shared, &scan);
        if !make.is_empty() {
            self.step(shared, Input::Preallocate { inodes: &make });
        }
        true
    }

    /// Tells the target what a scan of preallocated extents has found.
    pub(crate) fn apply_scan(
        &mut self,
        shared: &Shared,
        PreallocationScan { written, unused }: &PreallocationScan,
    ) {
        if !written.is_empty() {
            self.step(shared, Input::Written { extents: written });
        }
        if !unused.is_empty() {
            self.step(shared, Input::Reclaimed { extents: unused });
        }
    }
}
