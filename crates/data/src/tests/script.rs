//! Runs `testscripts/*.txt`: each case is lines of input, `---`, and the effects that must follow.
//!
//! Input: `target memory=.. ssd=.. [slots=..] [quota=..] [low=..] [min=..] [ssd=..+demand]`, then
//! `map`, `find`, `read`, `write`, `truncate`, `punch`, `usage`, `seek`, `space`, `flush` with a
//! file and a range, `remove`, `preallocate`, `written`, `reclaimed` with files (the last two with
//! an extent, `f1:4K`; `map` with `preallocate=`), `hazards <round> <slot>..`, `provisioned
//! yes|no`, `demote|promote <milliseconds> <used slot>..`, `copied <ticket> yes|no`, `lend
//! <bytes>`, `given-back <range> yes|no`, `tick`, `withdraw <ticket>`, `space-reported <round>
//! yes|no`, `writers <milliseconds>` (with a timeout of 1000), `entries` (what a kill leaves; `~`:
//! hidden). Each line's effects come indented below a repetition of the line. With
//! `UPDATE_SCRIPTS=1` the expected part is written anew.
#![expect(clippy::disallowed_methods, reason = "scripts are files")]

use crate::effect::{Answer, Effect, Input, Source, Validity};
use crate::space::tier::{Backing, Space};
use crate::target::{Settings, Target};
use crate::tiering::demote::DemotionSettings;
use std::fmt::Write as _;
use wire::reply::Extent;
use wire::{Errno, Inode, Request};

fn number(text: &str) -> u64 {
    let (digits, unit) = match text.strip_suffix('M') {
        Some(digits) => (digits, 1 << 20),
        None => text.strip_suffix('K').map_or((text, 1), |digits| (digits, 1 << 10)),
    };
    digits.parse::<u64>().unwrap_or_else(|_| panic!("not a number: {text}")) * unit
}

fn range(text: &str) -> (u64, u64) {
    let (from, to) = text.split_once("..").expect("a range");
    (number(from), number(to) - number(from))
}

fn size(bytes: u64) -> String {
    match bytes {
        0 => "0".into(),
        _ if bytes.is_multiple_of(1 << 20) => format!("{}M", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{}K", bytes >> 10),
        _ => bytes.to_string(),
    }
}

fn show(extent: &Extent) -> String {
    let tier = if extent.tier == Extent::MEMORY { "memory" } else { "ssd" };
    let end = extent.start + extent.length();
    format!(
        "#{} {}..{} at {tier} {}",
        extent.slot,
        size(extent.start),
        size(end),
        size(extent.location)
    )
}

fn slots(extents: &[Extent]) -> String {
    let slots: Vec<String> = extents.iter().map(|extent| format!("#{}", extent.slot)).collect();
    slots.join(" ")
}

fn show_answer(answer: &Answer) -> String {
    match answer {
        Answer::Refused(errno) => format!("Refused {}", errno.name()),
        Answer::Extents(extents) => format!("Extents {}", slots(extents)),
        Answer::OverLimit { account, requested } => {
            format!("OverLimit {} {}", account.0, size(*requested))
        }
        Answer::Number(value) => format!("Number {}", size(*value)),
        Answer::Bytes { length } => format!("Bytes {}", size((*length).into())),
        Answer::Space { memory_total, memory_free, ssd_total, ssd_free } => format!(
            "Space memory {} of {} free, ssd {} of {}",
            size(*memory_free),
            size(*memory_total),
            size(*ssd_free),
            size(*ssd_total)
        ),
        other => format!("{other:?}"),
    }
}

fn show_effect(effect: &Effect) -> String {
    let part = |from: u64, length: u64| format!("{}..{}", size(from), size(from + length));
    match effect {
        Effect::Publish { inode, extent, valid: Validity::As(from) } => {
            format!("Publish f{} {} valid as #{}", inode.0, show(extent), from.slot)
        }
        Effect::Publish { inode, extent, valid } => {
            format!("Publish f{} {} valid={valid:?}", inode.0, show(extent))
        }
        Effect::Keep { inode, extent } => format!("Keep f{} {}", inode.0, show(extent)),
        Effect::Mark { slot, is_pinned } => format!("Mark #{slot} {is_pinned}"),
        Effect::Hide { slot } => format!("Hide #{slot}"),
        Effect::HideToEvict { slot } => format!("HideToEvict #{slot}"),
        Effect::Show { slot } => format!("Show #{slot}"),
        Effect::Copy { ticket, from, to, .. } => {
            format!("Copy {ticket} #{} to {}", from.slot, show(to))
        }
        Effect::Unpublish { slot } => format!("Unpublish #{slot}"),
        Effect::CheckHazards { round } => format!("CheckHazards {round}"),
        Effect::Provision { tier, location, length, .. } => {
            let tier = if *tier == Extent::MEMORY { "memory" } else { "ssd" };
            format!("Provision {tier} {}", part(*location, *length))
        }
        Effect::Zero { extent, within, length, .. } => {
            format!("Zero #{} {}", extent.slot, part(*within, *length))
        }
        Effect::Read { from: Source::Hole, length, .. } => {
            format!("Read hole {}", size((*length).into()))
        }
        Effect::Read { from: Source::Extent { extent, within }, length, .. } => {
            format!("Read #{} {}", extent.slot, part(*within, (*length).into()))
        }
        Effect::Write { extent, within, from, length, .. } => {
            let to = part(*within, (*length).into());
            format!("Write #{} {to} from {}", extent.slot, size((*from).into()))
        }
        Effect::GiveBack { location, length_log2 } => {
            format!("GiveBack {}", part(*location, 1 << length_log2))
        }
        Effect::Flush { .. } => "Flush".into(),
        Effect::MarkReserved { slot } => format!("MarkReserved #{slot}"),
        Effect::CountPages { extents, .. } => format!("CountPages {}", slots(extents)),
        Effect::LocateBacking { inode } => format!("LocateBacking f{}", inode.0),
        Effect::Fill { ticket, inode, extent, length, .. } => {
            format!("Fill {ticket} f{} {} length={}", inode.0, show(extent), size(*length))
        }
        Effect::ReadBacking { inode, offset, length, backing, .. } => {
            let part = part(*offset, (*length).into());
            format!("ReadBacking f{} {part} backed={}", inode.0, size((*backing).into()))
        }
        Effect::Wait { ticket } => format!("Wait {ticket}"),
        Effect::RequestSpace { round } => format!("RequestSpace {round}"),
        Effect::Reply { ticket, answer } => format!("Reply {ticket} {}", show_answer(answer)),
        other => format!("{other:?}"),
    }
}

fn settings(words: &[&str]) -> Settings {
    let ready = Space { length: 0, backing: Backing::Ready, zeroed_from: 0, ahead: 0 };
    let demotion = DemotionSettings { idle_millis: 100, ..DemotionSettings::NEVER };
    let mut settings =
        Settings { memory: ready, ssd: ready, slot_count: 64, quota_bytes: u64::MAX, demotion };
    for word in words {
        let (name, value) = word.split_once('=').expect("name=value");
        let (value, backing) = match value.strip_suffix("+demand") {
            Some(value) => (value, Backing::OnDemand),
            None => (value, Backing::Ready),
        };
        match name {
            "memory" => {
                settings.memory = Space { length: number(value), backing, zeroed_from: 0, ahead: 0 }
            }
            "ssd" => {
                settings.ssd = Space { length: number(value), backing, zeroed_from: 0, ahead: 0 }
            }
            "low" => settings.demotion.demote_low_watermark_bytes = number(value),
            "min" => settings.demotion.demote_min_watermark_bytes = number(value),
            "slots" => settings.slot_count = number(value) as u32,
            "quota" => settings.quota_bytes = number(value),
            _ => panic!("no such setting: {name}"),
        }
    }
    settings
}

/// `<slot>:f<file>:<range>@<location>`, in memory; `@ssd<location>`: on the SSD.
fn row(word: &str) -> (Inode, Extent) {
    let fields: Vec<&str> = word.split([':', '@']).collect();
    let [slot, file, at, location] = fields[..] else { panic!("not an entry: {word}") };
    let (tier, location) = match location.strip_prefix("ssd") {
        Some(location) => (Extent::SSD, location),
        None => (Extent::MEMORY, location),
    };
    let (start, length) = range(at);
    let (slot, location) = (number(slot) as u32, number(location));
    let length_log2 = length.trailing_zeros() as u8;
    (Inode(number(&file[1..])), Extent { start, slot, location, length_log2, tier })
}

/// `f<file>`, or `f<file>:<start>`.
fn preallocated(word: &str) -> (Inode, u64) {
    let (file, start) = word.split_once(':').unwrap_or((word, "0"));
    (Inode(number(&file[1..])), number(start))
}

struct Runner {
    target: Option<Target>,
    settings: Settings,
    ticket: u64,
}

impl Runner {
    fn request(&mut self, request: &Request<'_>, out: &mut Vec<Effect>) {
        self.ticket += 1;
        let input = Input::Request { ticket: self.ticket, request, job: wire::JobWord::NONE };
        self.target.as_mut().expect("a target").step(input, out);
    }

    fn line(&mut self, line: &str) -> Vec<String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let mut out = Vec::new();
        let mut notes = Vec::new();
        let step = |runner: &mut Runner, input: Input<'_>, out: &mut Vec<Effect>| {
            runner.target.as_mut().expect("a target").step(input, out);
        };
        match words[0] {
            "target" => {
                self.settings = settings(&words[1..]);
                self.target = Some(Target::new(self.settings));
            }
            "entries" => notes = self.entries_line(&words[1..], &mut out),
            "hazards" => {
                let protected: Vec<u32> =
                    words[2..].iter().map(|slot| number(slot) as u32).collect();
                step(
                    self,
                    Input::Hazards { round: number(words[1]), protected: &protected, reading: &[] },
                    &mut out,
                );
            }
            "provisioned" => {
                let outcome = match words[1] {
                    "yes" => Ok(()),
                    "broken" => Err(Errno::EIO),
                    _ => Err(Errno::ENOSPC),
                };
                step(self, Input::Provisioned { outcome }, &mut out);
            }
            "preallocate" | "written" | "reclaimed" => {
                let extents: Vec<(Inode, u64)> =
                    words[1..].iter().map(|word| preallocated(word)).collect();
                let inodes: Vec<Inode> = extents.iter().map(|one| one.0).collect();
                let input = match words[0] {
                    "preallocate" => Input::Preallocate { inodes: &inodes },
                    "written" => Input::Written { extents: &extents },
                    _ => Input::Reclaimed { extents: &extents },
                };
                step(self, input, &mut out);
            }
            "demote" | "promote" => {
                let used: Vec<u32> = words[2..].iter().map(|slot| number(slot) as u32).collect();
                let target = self.target.as_mut().expect("a target");
                let mut was_used = |slot| used.contains(&slot);
                let now = number(words[1]) as u32;
                match words[0] {
                    "demote" => target.demote(now, &mut was_used, &mut out),
                    _ => target.promote(now, &mut was_used, &mut out),
                };
            }
            "copied" => {
                let outcome = if words[2] == "yes" { Ok(()) } else { Err(Errno::EIO) };
                step(self, Input::Copied { ticket: number(words[1]), outcome }, &mut out);
            }
            "lend" => self.target.as_mut().expect("a target").lend(number(words[1]), &mut out),
            "given-back" => {
                let (location, length) = range(words[1]);
                let length_log2 = length.trailing_zeros() as u8;
                let outcome = if words[2] == "yes" { Ok(()) } else { Err(Errno::EIO) };
                step(self, Input::GivenBack { location, length_log2, outcome }, &mut out);
            }
            "withdraw" | "space-reported" | "writers" | "tick" => self.wait_line(&words, &mut out),
            _ => self.file_line(&words, &mut out),
        }
        notes.extend(out.iter().map(show_effect));
        notes
    }

    /// A line that recovers a target from these entries. Returns those that were discarded.
    fn entries_line(&mut self, words: &[&str], out: &mut Vec<Effect>) -> Vec<String> {
        let hidden = words.iter().filter_map(|word| word.strip_prefix('~')).map(row);
        let shown = words.iter().filter(|word| !word.starts_with('~')).map(|word| row(word));
        self.settings.memory.zeroed_from = u64::MAX;
        let (target, discarded) = Target::recover(self.settings, shown, hidden, out);
        self.target = Some(target);
        discarded.iter().map(ToString::to_string).collect()
    }

    /// Lines about waiting requests, and time.
    fn wait_line(&mut self, words: &[&str], out: &mut Vec<Effect>) {
        let target = self.target.as_mut().expect("a target");
        let first = words.get(1).map_or(0, |word| number(word));
        match words[0] {
            "tick" => target.step(Input::Tick, out),
            "withdraw" => target.step(Input::Withdraw { ticket: first }, out),
            "space-reported" => {
                let comes = words[2] == "yes";
                target.step(Input::SpaceReported { round: first, comes, progresses: false }, out);
            }
            _ => target.tick_writers(first as u32, 1000, out),
        }
    }

    fn file_line(&mut self, words: &[&str], out: &mut Vec<Effect>) {
        let inode = Inode(words.get(1).map_or(0, |file| number(&file[1..])));
        let argument = words.get(2).copied().unwrap_or("0..0");
        let stripe = words.get(3).and_then(|word| word.strip_prefix("stripe="));
        let stripe_log2 = stripe.map_or(20, |stripe| number(stripe).ilog2() as u8);
        let ahead =
            words.iter().find_map(|word| word.strip_prefix("preallocate=")).map_or(0, number);
        let (offset, length) = if argument.contains("..") { range(argument) } else { (0, 0) };
        let bytes = vec![0; length as usize];
        let files = words.iter().skip(1).filter(|_| words[0] == "remove");
        let removed: Vec<u8> = files.flat_map(|file| number(&file[1..]).to_le_bytes()).collect();
        let request = match words[0] {
            "map" | "reserve" => Request::MapExtents {
                inode,
                stripe_log2,
                allocate: 1 + u8::from(words[0] == "reserve"),
                offset,
                length,
                preallocate: ahead,
            },
            "find" => Request::MapExtents {
                inode,
                stripe_log2,
                allocate: 0,
                offset,
                length,
                preallocate: 0,
            },
            "read" => Request::Read { inode, stripe_log2, offset, length: length as u32 },
            "write" => Request::Write {
                inode,
                stripe_log2,
                offset,
                truncate_epoch: u64::MAX,
                bytes: &bytes,
            },
            "truncate" => Request::Truncate { inode, stripe_log2, size: number(argument) },
            "punch" => Request::Punch { inode, stripe_log2, offset, length },
            "remove" => Request::Remove { inodes: &removed },
            "usage" => Request::Usage { inode, end: 1 << 40 },
            "seek" => Request::SeekData { inode, stripe_log2, offset: number(argument) },
            "space" => Request::Space {},
            "flush" => Request::Flush { inode },
            other => panic!("no such line: {other}"),
        };
        self.request(&request, out);
    }
}

fn run(case: &str) -> String {
    let (input, _) = case.split_once("\n---\n").unwrap_or((case.trim_end(), ""));
    let none = Space { length: 0, backing: Backing::Ready, zeroed_from: 0, ahead: 0 };
    let demotion = DemotionSettings::NEVER;
    let settings = Settings { memory: none, ssd: none, slot_count: 0, quota_bytes: 0, demotion };
    let mut runner = Runner { target: None, settings, ticket: 0 };
    let mut text = format!("{input}\n---\n");
    for line in input.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        writeln!(text, "{line}").expect("a string");
        for effect in runner.line(line) {
            writeln!(text, "    {effect}").expect("a string");
        }
    }
    text
}

#[test]
fn scripts() {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("testscripts");
    let mut count = 0;
    for entry in std::fs::read_dir(dir).expect("testscripts") {
        let path = entry.expect("an entry").path();
        let text = std::fs::read_to_string(&path).expect("a script");
        let cases: Vec<String> = text.split("\n====\n").map(run).collect();
        let cases: Vec<&str> = cases.iter().map(|case| case.trim_end()).collect();
        let now = format!("{}\n", cases.join("\n====\n"));
        if std::env::var_os("UPDATE_SCRIPTS").is_some() {
            std::fs::write(&path, &now).expect("a script");
        }
        let expected = std::fs::read_to_string(&path).expect("a script");
        assert!(now == expected, "{}: got\n{now}", path.display());
        count += 1;
    }
    assert!(count >= 3, "scripts are missing");
}
