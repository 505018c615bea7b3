//! The daemon's word on the copies that it has, and its questions about those of its followers.

use super::Node;
use crate::change::Tenure;
use crate::membership::ServiceIndex;
use crate::shipping::owner::Lag;
use crate::shipping::{Lane, Position};

impl Node {
    /// Before `start`: this daemon has a copy of a service of an earlier start, of this position. So it
    /// gets the later records if its owner still has them, instead of everything.
    pub fn has_copy(&mut self, service: ServiceIndex, position: Position) {
        self.services.has_copy(service, position);
    }

    /// The position of a copy, for `has_copy` of a later start. A daemon may store it after the
    /// `Action::Store` of the same input is done, and forgets it before `StandbyStep::Begin` and before
    /// `Action::Activate`.
    #[must_use]
    pub fn position(&self, service: ServiceIndex) -> Option<Position> {
        self.services.position(service)
    }

    /// Before `start`: the bytes of records that an owner keeps for followers that return, of each
    /// service; `shipping::owner::LOG_BYTES_MAX` at first.
    pub const fn set_log_bytes_max(&mut self, bytes: usize) {
        self.services.set_log_bytes_max(bytes);
    }

    /// Before `start`: as `shipping::owner::COPY_BYTES_MAX`, which it is at first.
    pub const fn set_copy_bytes_max(&mut self, bytes: usize) {
        self.services.set_copy_bytes_max(bytes);
    }

    /// A copy that this daemon had in an earlier start, or has for all that others know, is lost. So the
    /// membership does not count on it, and it is made anew.
    pub fn lost_copy(&mut self, service: ServiceIndex) {
        self.services.lost_copy(service);
    }

    /// The copy of a service that this daemon follows is lost, for example since its disk is full: it
    /// takes no parcel until `accept_copy`, and is dropped.
    pub fn refuse_copy(&mut self, service: ServiceIndex) {
        self.services.refuse_copy(service);
    }

    /// Ends `refuse_copy`, and what `Action::Keep` says.
    pub fn accept_copy(&mut self, service: ServiceIndex) {
        self.services.accept_copy(service);
    }

    /// Before `start`: this daemon replays the copy of a service before it serves it, and says so by
    /// `replayed` or `cannot_serve` after `Action::Activate`.
    pub const fn set_replays(&mut self) {
        self.services.set_replays();
    }

    /// The copy of a service that this daemon owns was replayed.
    pub fn replayed(&mut self, of: Tenure) {
        self.services.replayed(of);
    }

    /// This daemon cannot serve a service that it owns, and never did in this epoch: its copy cannot be
    /// replayed. A follower takes it over that has all that was acknowledged. Where there is none the
    /// service is not served. Without `set_replays` it has no effect.
    pub fn cannot_serve(&mut self, of: Tenure) {
        self.services.cannot_serve(of);
    }

    /// Ends `cannot_serve`, for another attempt. False: another daemon is about to take it over.
    pub fn may_try_again(&mut self, of: Tenure) -> bool {
        self.services.may_try_again(of)
    }

    /// Records of a service that this daemon owns were appended to its log and not given to `append`: its
    /// followers begin anew.
    pub fn lose(&mut self, service: ServiceIndex) {
        self.services.lose(service, self.now);
    }

    /// How far the followers of a service that this daemon owns are behind.
    pub fn lags(&self, service: ServiceIndex) -> impl Iterator<Item = Lag> {
        self.services.lags(service)
    }

    /// Bytes of a lane that wait for receipts; `None`: it has ended. More slices may wait for fewer.
    #[must_use]
    pub fn backlog(&self, lane: Lane) -> Option<usize> {
        self.services.backlog(lane)
    }

    /// The same for the followers of a service for which operations wait, the most of one.
    #[must_use]
    pub fn backlog_max(&self, service: ServiceIndex) -> usize {
        self.services.backlog_max(service)
    }

    /// Followers that got the later records only, since the start.
    #[must_use]
    pub const fn resumed(&self) -> u64 {
        self.services.resumed()
    }
}
