//! Mixtures as programs make them. The labels are what an expert on parallel I/O says of the program, not
//! what the code says.

use super::{KIB, MIB, Workload};

/// Records of IOR's hard test of the IO500.
const ODD: u64 = 47_008;

pub(super) fn all() -> Vec<Workload> {
    let parts = [checkpoints(), training(), files(), databases(), simulations(), searches()];
    parts.into_iter().flatten().collect()
}

/// Programs on the input that a backing directory has (`BACKED`).
pub(super) fn inputs() -> Vec<Workload> {
    vec![
        Workload::new("a cold input", 1, &["cold-reads"])
            .all(&format!("read /forebay/cold 32 {MIB} 0 {MIB}")),
        Workload::new("an input that is fetched before", 1, &[])
            .prepared("cat /forebay/warm >/dev/null")
            .all(&format!("read /forebay/warm 32 {MIB} 0 {MIB}")),
        Workload::new("an input of which the last part is cold", 1, &[])
            .prepared("cat /forebay/warm >/dev/null")
            .all(&format!("read /forebay/warm 32 {MIB} 0 {MIB}"))
            .all(&format!("read /forebay/tail 2 {MIB} 0 {MIB}")),
        Workload::new(
            "look-ups in a cold database",
            1,
            &["cold-reads", "small-reads", "random-reads"],
        )
        .all("gather /forebay/database 3000 4096 4096 7"),
        Workload::new("a cold mesh that each rank reads whole", 4, &["cold-reads"])
            .each(|_| format!("read /forebay/mesh 8 {MIB} 0 {MIB}")),
        Workload::new("a restart from cold files of each rank", 4, &["cold-reads"])
            .each(|rank| format!("read /forebay/part{rank} 4 {MIB} 0 {MIB}")),
    ]
}

fn checkpoints() -> Vec<Workload> {
    vec![
        Workload::new("checkpoint, a file for each rank", 4, &[])
            .each(|rank| format!("write @part{rank} 24 {MIB} 0 {MIB}")),
        Workload::new("restart from a file for each rank", 4, &[])
            .holes("@part", 4, 24 * MIB)
            .each(|rank| format!("read @part{rank} 24 {MIB} 0 {MIB}")),
        Workload::new("checkpoint of one file in large turns", 4, &[])
            .each(|rank| format!("write @all 24 {MIB} {} {}", rank * MIB, 4 * MIB)),
        Workload::new(
            "checkpoint of one file in small odd turns",
            4,
            &["small-writes", "small-writes-of-shared-file", "misaligned-writes"],
        )
        .each(|rank| format!("write @all 500 {ODD} {} {}", rank * ODD, 4 * ODD)),
        Workload::new("one rank collects the checkpoint of four", 4, &["unequal-writes"]).each(
            |rank| {
                let number = if rank == 0 { 96 } else { 1 };
                format!("write @part{rank} {number} {MIB} 0 {MIB}")
            },
        ),
        Workload::new("a checkpoint that is overwritten four times", 2, &["repeated-writes"])
            .each(|rank| format!("anew @part{rank} 12 {MIB}"))
            .each(|rank| format!("anew @part{rank} 12 {MIB}"))
            .each(|rank| format!("anew @part{rank} 12 {MIB}"))
            .each(|rank| format!("anew @part{rank} 12 {MIB}")),
        Workload::new("checkpoints of which each has its file, and a link to the last", 2, &[])
            .each(|rank| format!("write @step1.{rank} 12 {MIB} 0 {MIB}"))
            .each(|rank| format!("write @step2.{rank} 12 {MIB} 0 {MIB}"))
            .each(|rank| format!("replace @last{rank} 2 100")),
    ]
}

fn training() -> Vec<Workload> {
    vec![
        Workload::new(
            "training on shuffled samples of one file",
            4,
            &["small-reads", "small-reads-of-shared-file", "random-reads"],
        )
        .given(&format!("hole @set {}", 1600 * MIB))
        .each(|rank| format!("gather @set 2000 4096 400000 {rank}")),
        Workload::new("training on pictures", 4, &["small-reads", "whole-small-files"])
            .given("dir @set")
            .given("files @set 0 1600 20000")
            .each(|rank| format!("slurp @set {} 400 65536", rank * 400)),
        Workload::new("training on large shards", 4, &[])
            .holes("@shard", 4, 64 * MIB)
            .each(|rank| format!("read @shard{rank} 32 {} 0 {}", 2 * MIB, 2 * MIB)),
        Workload::new("two epochs over one shard", 1, &["repeated-reads"])
            .given(&format!("hole @shard {}", 64 * MIB))
            .all(&format!("read @shard 32 {} 0 {}", 2 * MIB, 2 * MIB))
            .all(&format!("read @shard 32 {} 0 {}", 2 * MIB, 2 * MIB)),
    ]
}

fn files() -> Vec<Workload> {
    vec![
        Workload::new("an archive of small files is unpacked", 1, &["small-writes"])
            .given("dir @src")
            .given("files @src 0 1500 3000")
            .prepared("tar cf @archive -C @ src && rm -r @src")
            .command("mkdir @out && tar xf @archive -C @out"),
        Workload::new("a clone of a small repository", 1, &[])
            .given("dir @origin")
            .all("dir @objects")
            .all("files @objects 0 250 900")
            .all("dir @tree")
            .all("files @tree 0 120 4000")
            .all("replace @HEAD 3 41")
            .all("stat @HEAD 400"),
        Workload::new("a copy by large blocks", 1, &[])
            .given(&format!("hole @a {}", 64 * MIB))
            .command("dd if=@a of=@b bs=2M 2>/dev/null"),
        Workload::new(
            "a copy by sectors",
            1,
            &["small-reads", "small-writes", "misaligned-reads", "misaligned-writes"],
        )
        .given(&format!("hole @a {MIB}"))
        .command("dd if=@a of=@b bs=512 2>/dev/null"),
        Workload::new("logs of four ranks by lines", 4, &["small-writes", "misaligned-writes"])
            .each(|rank| format!("append @log{rank} 3000 120")),
        Workload::new("a short log", 1, &[]).all("append @log 400 120"),
    ]
}

fn databases() -> Vec<Workload> {
    vec![
        Workload::new("random updates of a database", 1, &["small-writes", "random-writes"])
            .given(&format!("hole @db {}", 64 * MIB))
            .all("scatter @db 3000 8192 8000 7"),
        Workload::new("a journal with a sync for each record", 1, &["sync-after-each-write"])
            .all("synced @journal 600 4096 1"),
        Workload::new("look-ups in a database", 1, &["small-reads", "random-reads"])
            .given(&format!("hole @db {}", 800 * MIB))
            .all("gather @db 3000 8192 100000 7"),
        Workload::new("headers of many large files", 1, &["small-reads"])
            .given("dir @d")
            .holes("@d/f", 1200, 8 * MIB)
            .command("cd @d && head -qc 4096 f* >/dev/null"),
    ]
}

fn simulations() -> Vec<Workload> {
    let stencil = Workload::new("a stencil code with halo files and a checkpoint", 4, &[]);
    let stencil = (0..20).fold(stencil, |to, step| {
        to.each(|rank| format!("write @halo{rank}.{step} 2 {} 0 {}", 32 * KIB, 32 * KIB))
    });
    let tasks = "for task in 1 2 3 4 5 6 7 8 9 10 11 12; do
        dd if=@in of=@out$task bs=1M count=2 skip=$((2 * task)) 2>/dev/null; done";
    vec![
        stencil.each(|rank| format!("write @part{rank} 8 {MIB} 0 {MIB}")),
        Workload::new("a bag of tasks", 1, &[])
            .given(&format!("hole @in {}", 30 * MIB))
            .command(tasks),
        Workload::new("post-processing of four outputs", 1, &[])
            .holes("@part", 4, 24 * MIB)
            .all(&format!("read @part0 6 {} 0 {}", 4 * MIB, 4 * MIB))
            .all(&format!("read @part1 6 {} 0 {}", 4 * MIB, 4 * MIB))
            .all(&format!("read @part2 6 {} 0 {}", 4 * MIB, 4 * MIB))
            .all(&format!("read @part3 6 {} 0 {}", 4 * MIB, 4 * MIB))
            .all("write @summary 40 2000 0 2000"),
        Workload::new("a plane of a cube, cut across its rows", 1, &["small-reads"])
            .given(&format!("hole @cube {}", 2500 * MIB))
            .all(&format!("read @cube 2400 4096 0 {MIB}")),
        Workload::new("a mesh that each rank reads whole", 4, &[])
            .given(&format!("hole @mesh {}", 32 * MIB))
            .each(|_| format!("read @mesh 32 {MIB} 0 {MIB}")),
        Workload::new("a mesh that one rank reads for all", 4, &["unequal-reads"])
            .given(&format!("hole @mesh {}", 64 * MIB))
            .each(|rank| {
                let number = if rank == 0 { 64 } else { 0 };
                format!("read @mesh {number} {MIB} 0 {MIB}")
            })
            .each(|rank| format!("write @part{rank} 2 {MIB} 0 {MIB}")),
    ]
}

fn searches() -> Vec<Workload> {
    vec![
        Workload::new("programs with long search paths", 4, &["absent-names"])
            .given("dir @lib")
            .given("files @lib 0 60 9000")
            .each(|_| "absent @lib 480".to_owned())
            .each(|_| "slurp @lib 0 60 65536".to_owned()),
        Workload::new("Python imports a package of many modules", 1, &[])
            .given("dir @lib")
            .prepared("for at in $(seq 80); do echo x=1 >@lib/m$at.py; done")
            .command(
                "PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=@lib /usr/bin/python3 -c '
for at in range(1, 81): __import__(f\"m{at}\")'",
            ),
    ]
}
