//! Messages about rules and caps: each is read as it was written, and any bytes are read or refused.

use proptest::prelude::*;
use qos::exchange::{CapGrant, CapKey, CapReport, Message, Token};
use qos::incoming::JobUse;

fn key() -> impl Strategy<Value = CapKey> {
    (any::<u32>(), any::<u64>(), any::<bool>()).prop_map(|(user, job, is_bytes)| CapKey {
        user,
        job,
        token: if is_bytes { Token::Bytes } else { Token::Operations },
    })
}

fn encoded(message: &Message<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    bytes
}

proptest! {
    #[test]
    fn messages_are_read_as_they_were_written(
        number: u64,
        text in ".*",
        reports in prop::collection::vec((key(), any::<[u64; 4]>()), 0..5),
        grants in prop::collection::vec((key(), any::<[u64; 3]>()), 0..5),
        uses in prop::collection::vec((any::<[u32; 3]>(), any::<[u64; 2]>(), any::<bool>()), 0..5),
        pool: u8,
    ) {
        let uses = uses.into_iter().map(|([user, first, second], [job, bytes_per_second], waits)| {
            JobUse { user: (user, first), job: (job, second), waits, bytes_per_second }
        });
        let reports = reports.into_iter().map(|(key, [cap, number, demand, grant])| {
            CapReport { key, cap, number, demand, grant }
        });
        let grants = grants.into_iter().map(|(key, [number, report, per_second])| {
            CapGrant { key, number, report, per_second }
        });
        for message in [
            Message::Rules(number, &text),
            Message::Has(number),
            Message::Command(number, &text),
            Message::Outcome(number, &text),
            Message::Reports(number, reports.collect()),
            Message::Grants(grants.collect()),
            Message::Uses(pool, uses.collect()),
            Message::Factor(pool, number as u32),
        ] {
            let bytes = encoded(&message);
            prop_assert_eq!(Message::decode(&bytes), Some(message));
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(kind in 0u8..10, rest: Vec<u8>) {
        let bytes = [vec![kind], rest].concat();
        if let Some(message) = Message::decode(&bytes) {
            prop_assert_eq!(encoded(&message), bytes);
        }
    }
}
