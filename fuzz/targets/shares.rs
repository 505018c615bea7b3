//! Messages between daemons about rules and caps, and the rules and commands in them.
//!
//! A message is read as it was written, and each state that reads one goes on: the rules that a message
//! brings are written and read again as the same, and the division of a cap never gives more than the cap,
//! whatever reports say.
#![no_main]

use forebay_fuzz::write_seeds;
use libfuzzer_sys::fuzz_target;
use qos::division::{Division, Grant, LEASE_NANOS, PERIOD_NANOS, Part, Report};
use qos::exchange::{CapGrant, CapKey, CapReport, Message, Token};
use qos::incoming::{FACTOR_MAX, Incoming, JobUse};
use qos::rules::Rules;

const RULES: &str = "start limit jobid={a x} bw=5M rate=1K\nstart rest * inflight=3 weight=2\n";
const DAEMONS: u32 = 4;

fn seeds() -> Vec<Vec<u8>> {
    let key = CapKey { user: 1000, job: 7, token: Token::Bytes };
    let report = CapReport { key, cap: 1 << 30, number: 2, demand: 3, grant: 1 };
    let other = CapKey { token: Token::Operations, ..key };
    let grant = CapGrant { key: other, number: 5, report: 2, per_second: 9 };
    let one = JobUse { user: (5, 1), job: (7, 3), waits: true, bytes_per_second: 1 << 20 };
    let messages = [
        Message::Rules(3, RULES),
        Message::Has(3),
        Message::Command(4, "start other uid={5} bw=10M min=1M"),
        Message::Outcome(4, "it has no rule limit"),
        Message::Reports(3, vec![report, CapReport { key: other, ..report }]),
        Message::Grants(vec![grant, CapGrant { key, ..grant }]),
        Message::Uses(1, vec![one, JobUse { job: (8, 2), waits: false, ..one }]),
        Message::Factor(1, 2500),
    ];
    let encoded = messages.map(|message| {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        bytes
    });
    encoded.to_vec()
}

/// Rules that are written and read again are the same.
fn written_again(rules: &Rules) {
    let text = rules.to_text();
    let again = Rules::from_text(&text).expect("rules that were written");
    assert_eq!(again.to_text(), text);
}

/// A command changes the rules, or leaves them as they were.
fn command(text: &str) {
    let mut rules = Rules::from_text(RULES).expect("rules");
    let before = rules.to_text();
    match rules.execute(text) {
        Ok(()) => written_again(&rules),
        Err(error) => {
            assert!(!error.to_string().is_empty());
            assert_eq!(rules.to_text(), before);
        }
    }
}

/// Reports of some daemons in turn on one cap.
fn reports(rows: &[CapReport]) {
    let Some(cap) = rows.first().map(|row| row.cap) else { return };
    let mut now = 1;
    let mut division = Division::new(now, cap, DAEMONS);
    let mut grants = Vec::new();
    now += LEASE_NANOS;
    for (row, daemon) in rows.iter().zip((0..=DAEMONS).cycle()) {
        let CapReport { number, demand, grant, .. } = *row;
        division.report(now, Report { daemon, number, demand, grant });
        division.divide(now, &mut grants);
        let given: u128 = grants.drain(..).map(|grant| u128::from(grant.per_second)).sum();
        assert!(given <= u128::from(cap.max(u64::from(DAEMONS))), "{given} of {cap}");
        now += PERIOD_NANOS;
    }
}

/// Grants to a daemon, of which some answer its reports.
fn grants(rows: &[CapGrant]) {
    let mut now = 1;
    let mut part = Part::new(now, 0, 1 << 20, DAEMONS);
    for row in rows {
        let sent = part.report(now, row.per_second);
        let report = if row.report % 2 == 0 { sent.number } else { row.report };
        let CapGrant { number, per_second, .. } = *row;
        part.take_grant(now, Grant { daemon: 0, number, report, per_second });
        assert!(part.per_second(now) > 0);
        now += PERIOD_NANOS;
    }
}

/// Hosts that report these jobs, and a part of them: no factor is out of its bounds.
fn uses(rows: &[JobUse]) {
    let mut incoming = Incoming::default();
    for period in 0..5 {
        let now = 1 + period * PERIOD_NANOS;
        incoming.report(now, 0, rows.to_vec());
        incoming.report(now, 1, rows.iter().step_by(2).copied().collect());
        for (_, factor) in incoming.divide(now) {
            assert!((1.0..=FACTOR_MAX).contains(&factor), "{factor}");
        }
    }
}

fuzz_target!(init: write_seeds(seeds()), |data: &[u8]| {
    let Some(message) = Message::decode(data) else { return };
    let mut again = Vec::new();
    message.encode(&mut again);
    assert_eq!(again, data);
    match &message {
        Message::Rules(_, text) => {
            if let Ok(rules) = Rules::from_text(text) {
                written_again(&rules);
            }
        }
        Message::Command(_, text) => command(text),
        Message::Reports(_, rows) => reports(rows),
        Message::Grants(rows) => grants(rows),
        Message::Uses(_, rows) => uses(rows),
        Message::Has(_) | Message::Outcome(..) | Message::Factor(..) => {}
    }
});
