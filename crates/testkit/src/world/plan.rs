//! A plan of faults: when each happens, and when it ends.

/// A fault of a host or of its links, as all worlds have them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HostFault {
    /// The process ends.
    Kill(u16),
    /// It starts again.
    Start(u16),
    /// No other host reaches it, and it reaches none.
    Cut(u16),
    /// The first does not reach the second.
    OneWay(u16, u16),
    /// All links work again.
    Heal,
    /// The process stands still for so many nanoseconds.
    Pause(u16, i64),
}

/// The faults of a run, those of hosts among others of its world.
pub struct Plan<F> {
    list: Vec<(i64, F)>,
}

impl<F> Default for Plan<F> {
    fn default() -> Plan<F> {
        Plan { list: Vec::new() }
    }
}

impl<F: From<HostFault>> Plan<F> {
    /// A fault that ends by itself, or does not.
    pub fn add(&mut self, at: i64, fault: impl Into<F>) {
        self.list.push((at, fault.into()));
    }

    /// A process that starts again after this time.
    pub fn kill(&mut self, at: i64, host: u16, length: i64) {
        self.add(at, HostFault::Kill(host));
        self.add(at + length, HostFault::Start(host));
    }

    /// A fault of links. After this time all links work again.
    pub fn cut(&mut self, at: i64, fault: impl Into<F>, length: i64) {
        self.add(at, fault);
        self.add(at + length, HostFault::Heal);
    }

    /// The faults so far, in the order in which they were planned.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &(i64, F)> {
        self.list.iter()
    }

    /// The faults in the order of their times.
    #[must_use]
    pub fn in_order(mut self) -> Vec<(i64, F)> {
        self.list.sort_by_key(|&(at, _)| at);
        self.list
    }
}

#[test]
fn faults_end() {
    let mut plan: Plan<HostFault> = Plan::default();
    plan.kill(7, 1, 3);
    plan.cut(2, HostFault::OneWay(1, 2), 5);
    plan.add(8, HostFault::Pause(1, 4));
    let expected = [
        (2, HostFault::OneWay(1, 2)),
        (7, HostFault::Kill(1)),
        (7, HostFault::Heal),
        (8, HostFault::Pause(1, 4)),
        (10, HostFault::Start(1)),
    ];
    assert_eq!(plan.in_order(), expected);
}
