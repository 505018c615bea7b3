//! A worker with requests of both kinds, in simulation: each takes its time, one after the other.

use qos::kind_queue::{KindQueue, RequestKind};
use qos::scheduler::OptionsError;

/// A small request for metadata, and one that writes 64 KiB.
const NANOS: [u64; 2] = [8_000, 90_000];

fn place(kind: RequestKind) -> usize {
    usize::from(kind != RequestKind::Metadata)
}

/// Serves requests for this time; how much of it, and how many, were of each kind. `refill` adds some.
fn serve(
    queue: &mut KindQueue<u64>,
    until: u64,
    mut refill: impl FnMut(&mut KindQueue<u64>, RequestKind),
) -> ([u64; 2], [u64; 2]) {
    let (mut times, mut counts, mut now) = ([0; 2], [0; 2], 0);
    while now < until {
        let counts_time = queue.several_wait();
        let Some((kind, _)) = queue.pop() else { break };
        let nanos = NANOS[place(kind)];
        if counts_time {
            queue.served(kind, nanos);
        }
        now += nanos;
        times[place(kind)] += nanos;
        counts[place(kind)] += 1;
        refill(queue, kind);
    }
    (times, counts)
}

#[test]
fn thousands_of_one_kind_leave_the_other_its_part() {
    for percent in [10, 25, 50, 75, 90] {
        let mut queue = KindQueue::new(percent).expect("a part");
        // All of one kind have come before the first of the other.
        (0..20_000).for_each(|number| queue.push(RequestKind::Metadata, number));
        (0..20_000).for_each(|number| queue.push(RequestKind::Data, number));
        let (times, _) = serve(&mut queue, 100_000_000, |_, _| ());
        let part = times[0] * 1000 / (times[0] + times[1]);
        let expected = u64::from(percent) * 10;
        assert!(part.abs_diff(expected) <= 2, "{part} of 1000 at {percent} %");
    }
}

/// A thousand clients of metadata and one stream, each with a request at a time: in order of arrival the
/// stream has one request in a thousand, which is a hundredth of the time.
#[test]
fn one_stream_beside_a_thousand_clients_has_its_part() {
    for percent in [25, 50, 90] {
        let mut queue = KindQueue::new(percent).expect("a part");
        (0..1000).for_each(|number| queue.push(RequestKind::Metadata, number));
        queue.push(RequestKind::Data, 0);
        let mut is_on_the_way = false;
        let (times, counts) = serve(&mut queue, 1_000_000_000, |queue, kind| match kind {
            // Its next request comes when another one has been served.
            RequestKind::Data => is_on_the_way = true,
            RequestKind::Urgent => unreachable!("none comes"),
            RequestKind::Metadata => {
                queue.push(kind, 0);
                if std::mem::take(&mut is_on_the_way) {
                    queue.push(RequestKind::Data, 0);
                }
            }
        });
        let share = times[1] * 100 / (times[0] + times[1]);
        let part = u64::from(100 - percent);
        assert!(share >= part * 9 / 10 && share <= part, "{share} of {part} %: {counts:?}");
    }
}

#[test]
fn what_one_kind_does_not_need_the_other_has_and_owes_nothing() {
    let mut queue = KindQueue::new(50).expect("a part");
    (0..1000).for_each(|number| queue.push(RequestKind::Metadata, number));
    let (times, counts) = serve(&mut queue, u64::MAX, |_, _| ());
    assert_eq!((times[1], counts), (0, [1000, 0]));
    // Metadata had the worker alone, and waits no longer than before.
    (0..1000).for_each(|number| {
        queue.push(RequestKind::Metadata, number);
        queue.push(RequestKind::Data, number);
    });
    let (times, _) = serve(&mut queue, 10_000_000, |_, _| ());
    assert!(times[0].abs_diff(times[1]) <= NANOS[1], "{times:?}");
}

#[test]
fn each_kind_is_served_in_its_order() {
    let mut queue = KindQueue::new(30).expect("a part");
    (0..100).for_each(|number| {
        queue.push(RequestKind::Data, number);
        queue.push(RequestKind::Metadata, number);
    });
    let mut last = [None; 2];
    while let Some((kind, number)) = queue.pop() {
        queue.served(kind, NANOS[place(kind)]);
        assert_eq!(number, last[place(kind)].map_or(0, |last: u64| last + 1));
        last[place(kind)] = Some(number);
    }
    assert_eq!(last, [Some(99); 2]);
}

/// Thousands of each kind wait: urgent ones have four fifths, and the rest is shared as without them.
#[test]
fn urgent_requests_go_first_and_leave_a_fifth() {
    let mut queue = KindQueue::new(50).expect("a part");
    for number in 0..20_000 {
        queue.push(RequestKind::Metadata, number);
        queue.push(RequestKind::Data, number);
        queue.push(RequestKind::Urgent, number);
    }
    assert!(matches!(queue.pop(), Some((RequestKind::Urgent, 0))));
    let mut times = [0; 3];
    while times.iter().sum::<u64>() < 100_000_000 {
        assert!(queue.several_wait());
        let (kind, _) = queue.pop().expect("many wait");
        let nanos = NANOS[place(kind)];
        queue.served(kind, nanos);
        let place = [RequestKind::Urgent, RequestKind::Metadata, RequestKind::Data];
        times[place.iter().position(|one| *one == kind).expect("a kind")] += nanos;
    }
    let total: u64 = times.iter().sum();
    for (time, percent) in times.iter().zip([80, 10, 10]) {
        let part = time * 1000 / total;
        assert!(part.abs_diff(percent * 10) <= 3, "{times:?}");
    }
}

/// Thousands of requests wait; a few urgent ones, each after the end of the one before.
#[test]
fn an_urgent_request_waits_for_one_other_at_most() {
    let mut queue = KindQueue::new(50).expect("a part");
    (0..1000).for_each(|number| queue.push(RequestKind::Data, number));
    for round in 0..100 {
        queue.push(RequestKind::Urgent, round);
        let first = queue.pop().expect("many wait");
        queue.served(first.0, NANOS[place(first.0)]);
        let urgent = Some((RequestKind::Urgent, round));
        assert!(Some(first) == urgent || queue.pop() == urgent, "{first:?} in round {round}");
    }
}

/// A request in which the thread stood still for an hour is not paid for by an hour of the other kind.
#[test]
fn a_thread_that_stood_still_delays_a_kind_by_some_milliseconds() {
    let mut queue = KindQueue::new(50).expect("a part");
    queue.served(RequestKind::Metadata, 3_600_000_000_000);
    (0..10_000).for_each(|number| {
        queue.push(RequestKind::Metadata, number);
        queue.push(RequestKind::Data, number);
    });
    let (times, _) = serve(&mut queue, 50_000_000, |_, _| ());
    assert!(times[0] >= 15_000_000, "{times:?}");
}

#[test]
fn neither_kind_has_less_than_a_tenth() {
    let error = OptionsError { option: "metadata_percent", least: 10, most: 90 };
    for percent in [0, 9, 91, 100, u32::MAX] {
        assert_eq!(KindQueue::<u64>::new(percent).err(), Some(error), "{percent}");
    }
}
