//! Both sides of the threshold of each trigger: one workload at which it fires and one just below.
//! Numbers are exact; where the order of transfers counts, it is one that no sample can mistake. Files
//! that are only read are holes, which take no memory.

use super::{KIB, MIB, Workload};

/// Those that `make test` runs, too.
pub(super) fn few() -> Vec<Workload> {
    let mut few = names();
    few.truncate(2);
    few.extend(small().into_iter().take(2));
    few.extend(reopened().into_iter().take(2));
    few
}

pub(super) fn all() -> Vec<Workload> {
    let parts = [small(), small_beside_large(), small_shared(), misaligned(), repeated(), order()];
    let others = [unequal(), names(), small_files(), synced(), reopened(), dominant()];
    parts.into_iter().chain(others).flatten().collect()
}

fn small() -> Vec<Workload> {
    vec![
        Workload::new("1,001 small writes", 1, &["small-writes"]).all("write @a 1001 4096 0 4096"),
        Workload::new("1,000 small writes", 1, &[]).all("write @a 1000 4096 0 4096"),
        Workload::new("1,001 small reads", 1, &["small-reads"])
            .given("hole @a 1025024000")
            .all("read @a 1001 1015808 0 1024000"),
        Workload::new("1,001 reads of 1 MiB", 1, &[])
            .given("hole @a 1049624576")
            .all("read @a 1001 1048576 0 1048576"),
    ]
}

fn small_beside_large() -> Vec<Workload> {
    let beside = |large: u64| format!("read @large {large} {MIB} 0 {MIB}");
    let given = |workload: Workload| {
        workload.given(&format!("hole @large {}", 11_000 * MIB)).given("hole @small 4505600")
    };
    vec![
        given(Workload::new("a ninth of the reads is small", 1, &["small-reads"]))
            .all("read @small 1100 4096 0 4096")
            .all(&beside(8800)),
        given(Workload::new("a thirteenth of the reads is small", 1, &[]))
            .all("read @small 1100 4096 0 4096")
            .all(&beside(13 * 800)),
    ]
}

fn small_shared() -> Vec<Workload> {
    let write = |number: u64, rank: u64| format!("write @a {number} 4096 {} 8192", rank * 4096);
    let read = |number: u64, rank: u64| format!("read @a {number} 4096 {} 8192", rank * 4096);
    vec![
        Workload::new(
            "two ranks write 502 small records each of one file",
            2,
            &["small-writes", "small-writes-of-shared-file"],
        )
        .each(|rank| write(502, rank)),
        Workload::new("two ranks write 500 small records each of one file", 2, &[])
            .each(|rank| write(500, rank)),
        Workload::new("two ranks write small records of their own files", 2, &["small-writes"])
            .each(|rank| format!("write @a{rank} 800 4096 0 4096")),
        Workload::new(
            "two ranks read 502 small records each of one file",
            2,
            &["small-reads", "small-reads-of-shared-file"],
        )
        .given("hole @a 9000000")
        .each(|rank| read(502, rank)),
        Workload::new("two ranks read 500 small records each of one file", 2, &[])
            .given("hole @a 9000000")
            .each(|rank| read(500, rank)),
    ]
}

fn misaligned() -> Vec<Workload> {
    vec![
        Workload::new("1,100 large reads behind a header", 1, &["misaligned-reads"])
            .given(&format!("hole @a {}", 1200 * MIB))
            .all(&format!("read @a 1100 {MIB} 100 {MIB}")),
        Workload::new("1,000 large reads behind a header", 1, &[])
            .given(&format!("hole @a {}", 1200 * MIB))
            .all(&format!("read @a 1000 {MIB} 100 {MIB}")),
        Workload::new("1,100 records of 1,000 bytes", 1, &["small-writes", "misaligned-writes"])
            .all("write @a 1100 1000 0 1000"),
        Workload::new("1,000 records of 1,000 bytes", 1, &[]).all("write @a 1000 1000 0 1000"),
    ]
}

fn repeated() -> Vec<Workload> {
    let part = |number: u64| format!("read @a {number} {MIB} 0 {MIB}");
    let given = |workload: Workload| workload.given(&format!("hole @a {}", 30 * MIB));
    vec![
        given(Workload::new("an input read twice", 1, &["repeated-reads"]))
            .all(&part(30))
            .all(&part(30)),
        given(Workload::new("an input of which an eighth is read again", 1, &["repeated-reads"]))
            .all(&part(30))
            .all(&part(4)),
        given(Workload::new("an input of which a fifteenth is read again", 1, &[]))
            .all(&part(30))
            .all(&part(2)),
        Workload::new("a short input read twenty times", 1, &[])
            .given("hole @a 40960")
            .all("read @a 10 4096 0 4096")
            .all("read @a 10 4096 0 4096"),
        Workload::new("a file truncated and written again", 1, &["repeated-writes"])
            .all(&format!("anew @a 10 {MIB}"))
            .all(&format!("anew @a 10 {MIB}")),
        Workload::new("a file whose head is written again", 1, &[])
            .all(&format!("write @a 20 {MIB} 0 {MIB}"))
            .all(&format!("write @a 1 {MIB} 0 {MIB}")),
    ]
}

fn order() -> Vec<Workload> {
    let backwards =
        |verb: &str, number: u64| format!("{verb} @a {number} 4096 {} -4096", (number - 1) * 4096);
    vec![
        Workload::new("1,002 reads backwards", 1, &["small-reads", "random-reads"])
            .given("hole @a 4104192")
            .all(&backwards("read", 1002)),
        Workload::new("1,001 reads backwards", 1, &["small-reads"])
            .given("hole @a 4104192")
            .all(&backwards("read", 1001)),
        Workload::new("1,002 writes backwards", 1, &["small-writes", "random-writes"])
            .all(&backwards("write", 1002)),
        Workload::new("1,001 writes backwards", 1, &["small-writes"])
            .all(&backwards("write", 1001)),
        Workload::new("a sixth of the reads backwards", 1, &["small-reads"])
            .given("hole @a 50000000")
            .all("read @a 6000 4096 0 4096")
            .all("read @a 1200 4096 39997440 -4096")
            .facts(&[("ordered-reads", true)]),
        Workload::new("1,001 reads forward", 1, &["small-reads"])
            .given("hole @a 9000000")
            .all("read @a 1001 4096 0 8192")
            .facts(&[("ordered-reads", true), ("ordered-writes", false)]),
        Workload::new("1,000 reads forward", 1, &[])
            .given("hole @a 9000000")
            .all("read @a 1000 4096 0 8192")
            .facts(&[("ordered-reads", false)]),
        Workload::new("1,001 writes forward", 1, &["small-writes"])
            .all("write @a 1001 4096 0 8192")
            .facts(&[("ordered-writes", true)]),
    ]
}

fn unequal() -> Vec<Workload> {
    let own = |most: u64, least: u64| {
        move |rank: u64| {
            let number = if rank == 0 { most } else { least };
            format!("write @a{rank} {number} {MIB} 0 {MIB}")
        }
    };
    let shared = |verb: &'static str, most: u64, least: u64| {
        move |rank: u64| {
            let number = if rank == 0 { most } else { least };
            format!("{verb} @a {number} {MIB} {} {MIB}", rank * 200 * MIB)
        }
    };
    let hole = format!("hole @a {}", 400 * MIB);
    vec![
        Workload::new("a rank writes 44 % more", 2, &["unequal-writes"]).each(own(56, 39)),
        Workload::new("a rank writes 40 % more", 2, &[]).each(own(56, 40)),
        Workload::new("a rank writes 15 MiB more", 2, &[]).each(own(20, 5)),
        Workload::new("a rank reads 44 % more", 2, &["unequal-reads"])
            .given(&format!("hole @a0 {}", 56 * MIB))
            .given(&format!("hole @a1 {}", 56 * MIB))
            .each(move |rank| own(56, 39)(rank).replace("write", "read")),
        Workload::new("a rank reads 40 % more", 2, &[])
            .given(&format!("hole @a0 {}", 56 * MIB))
            .given(&format!("hole @a1 {}", 56 * MIB))
            .each(move |rank| own(56, 40)(rank).replace("write", "read")),
        Workload::new(
            "a rank writes 19 % more of a shared file",
            2,
            &["unequal-writes-of-shared-file"],
        )
        .each(shared("write", 120, 101)),
        Workload::new("a rank writes 17 % more of a shared file", 2, &[])
            .each(shared("write", 120, 103)),
        Workload::new(
            "a rank reads 19 % more of a shared file",
            2,
            &["unequal-reads-of-shared-file"],
        )
        .given(&hole)
        .each(shared("read", 120, 101)),
        Workload::new("a rank reads 17 % more of a shared file", 2, &[])
            .given(&hole)
            .each(shared("read", 120, 103)),
    ]
}

fn names() -> Vec<Workload> {
    vec![
        Workload::new("1,001 names that do not exist", 1, &["absent-names"]).all("absent @ 1001"),
        Workload::new("1,000 names that do not exist", 1, &[]).all("absent @ 1000"),
        Workload::new("a fifth of many names does not exist", 1, &["absent-names"])
            .given("hole @a 1")
            .all("absent @ 1100")
            .all("stat @a 4200"),
        Workload::new("less than a fifth of many names does not exist", 1, &[])
            .given("hole @a 1")
            .all("absent @ 1100")
            .all("stat @a 4500"),
        Workload::new("20,000 names that exist", 1, &[]).given("hole @a 1").all("stat @a 20000"),
    ]
}

fn small_files() -> Vec<Workload> {
    vec![
        Workload::new("1,001 small files read whole", 1, &["whole-small-files", "small-reads"])
            .given("dir @d")
            .given("files @d 0 1001 5000")
            .all("slurp @d 0 1001 65536"),
        // Each takes a read of its data and one that finds its end.
        Workload::new("1,000 small files read whole", 1, &["small-reads"])
            .given("dir @d")
            .given("files @d 0 1000 5000")
            .all("slurp @d 0 1000 65536"),
        Workload::new("1,001 files of 1 MiB read whole", 1, &[])
            .given("dir @d")
            .holes("@d/f", 1001, MIB)
            .all(&format!("slurp @d 0 1001 {MIB}")),
        Workload::new("1,500 small files written", 1, &["small-writes"])
            .given("dir @d")
            .all("files @d 0 1500 5000"),
    ]
}

fn synced() -> Vec<Workload> {
    vec![
        Workload::new("101 writes, each synced", 1, &["sync-after-each-write"])
            .all(&format!("synced @a 101 {} 1", 64 * KIB)),
        Workload::new("100 writes, each synced", 1, &[])
            .all(&format!("synced @a 100 {} 1", 64 * KIB)),
        Workload::new("every second write synced", 1, &["sync-after-each-write"])
            .all("synced @a 300 4096 2"),
        Workload::new("every third write synced", 1, &[]).all("synced @a 450 4096 3"),
    ]
}

fn reopened() -> Vec<Workload> {
    vec![
        Workload::new(
            "a file opened for each of 1,001 records",
            1,
            &["reopened-files", "small-reads"],
        )
        .given("hole @a 4104192")
        .all("reopen-read @a 1001 4096 1"),
        Workload::new("a file opened for each of 1,000 records", 1, &[])
            .given("hole @a 4104192")
            .all("reopen-read @a 1000 4096 1"),
        Workload::new("a file opened for each third record", 1, &["small-reads"])
            .given("hole @a 13000000")
            .all("reopen-read @a 1001 4096 3"),
        Workload::new(
            "a status file opened for each line",
            1,
            &["reopened-files", "small-writes", "misaligned-writes"],
        )
        .all("reopen-write @a 1200 80 1"),
    ]
}

fn dominant() -> Vec<Workload> {
    let both = |reads: u64, writes: u64| {
        [format!("read @a {reads} 8192 0 8192"), format!("write @b {writes} 8192 0 8192")]
    };
    let of = |name, reads, writes| {
        let [read, write] = both(reads, writes);
        Workload::new(name, 1, &[]).given("hole @a 2000000").all(&read).all(&write)
    };
    vec![
        of("11 writes for 9 reads", 100, 123)
            .facts(&[("mostly-write-calls", true), ("mostly-writes", true)]),
        of("almost as many reads as writes", 100, 122).facts(&[
            ("mostly-write-calls", false),
            ("mostly-writes", false),
            ("mostly-read-calls", false),
            ("mostly-reads", false),
        ]),
        of("11 reads for 9 writes", 123, 100)
            .facts(&[("mostly-read-calls", true), ("mostly-reads", true)]),
    ]
}
