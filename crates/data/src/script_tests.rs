//! Runs `testscripts/*.txt`: each case is lines of input, `---`, and the effects that must follow.
//!
//! Input: `target memory=.. ssd=.. [slots=..] [quota=..] [normal=..] [forced=..] [ssd=..+demand]`, then
//! `map`, `find`,
//! `read`, `write`, `truncate`, `punch`, `usage`, `seek`, `space`, `flush` with a file and a range,
//! `remove`, `early`, `wanted`, `unwanted` with files (the last two with a piece, `f1:4K`; `map` with
//! `ahead=`), `pins <round> <slot>..`, `preallocated yes|no`, `sink|rise <milliseconds> <used slot>..`,
//! `copied <ticket> yes|no`, `lend <bytes>`, `given-back <range> yes|no`, `tick`, `withdraw <ticket>`,
//! `room-asked <round> yes|no`, `writers <milliseconds>` (whose patience is 1000), `rows` (what a kill
//! leaves; `~`: hidden). Each line's effects come
//! indented below a repetition of the line. With `UPDATE_SCRIPTS=1` the expected part is written anew.

use crate::effect::{Answer, Defined, Effect, Input, Source};
use crate::sink::Sinking;
use crate::target::{Settings, Target};
use crate::tier::{Backing, Space};
use std::fmt::Write as _;
use wire::reply::Piece;
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

fn show(piece: &Piece) -> String {
    let tier = if piece.tier == Piece::MEMORY { "memory" } else { "ssd" };
    let end = piece.start + piece.length();
    format!("#{} {}..{} at {tier} {}", piece.slot, size(piece.start), size(end), size(piece.place))
}

fn show_answer(answer: &Answer) -> String {
    match answer {
        Answer::Refused(errno) => format!("Refused {}", errno.name()),
        Answer::Pieces(pieces) => {
            let slots: Vec<String> =
                pieces.iter().map(|piece| format!("#{}", piece.slot)).collect();
            format!("Pieces {}", slots.join(" "))
        }
        Answer::Beyond { account, wanted } => format!("Beyond {} {}", account.0, size(*wanted)),
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
        Effect::Publish { inode, piece, defined: Defined::As(from) } => {
            format!("Publish f{} {} defined as #{}", inode.0, show(piece), from.slot)
        }
        Effect::Publish { inode, piece, defined } => {
            format!("Publish f{} {} defined={defined:?}", inode.0, show(piece))
        }
        Effect::Keep { inode, piece } => format!("Keep f{} {}", inode.0, show(piece)),
        Effect::Mark { slot, is_resident } => format!("Mark #{slot} {is_resident}"),
        Effect::Hide { slot } => format!("Hide #{slot}"),
        Effect::HideToDrop { slot } => format!("HideToDrop #{slot}"),
        Effect::Show { slot } => format!("Show #{slot}"),
        Effect::Copy { ticket, from, to } => {
            format!("Copy {ticket} #{} to {}", from.slot, show(to))
        }
        Effect::Unpublish { slot } => format!("Unpublish #{slot}"),
        Effect::CheckPins { round } => format!("CheckPins {round}"),
        Effect::Preallocate { tier, place, length, .. } => {
            let tier = if *tier == Piece::MEMORY { "memory" } else { "ssd" };
            format!("Preallocate {tier} {}", part(*place, *length))
        }
        Effect::Zero { piece, within, length, .. } => {
            format!("Zero #{} {}", piece.slot, part(*within, *length))
        }
        Effect::Read { from: Source::Hole, length, .. } => {
            format!("Read hole {}", size((*length).into()))
        }
        Effect::Read { from: Source::Piece { piece, within }, length, .. } => {
            format!("Read #{} {}", piece.slot, part(*within, (*length).into()))
        }
        Effect::Write { piece, within, from, length, .. } => {
            let to = part(*within, (*length).into());
            format!("Write #{} {to} from {}", piece.slot, size((*from).into()))
        }
        Effect::GiveBack { place, length_log2 } => {
            format!("GiveBack {}", part(*place, 1 << length_log2))
        }
        Effect::Flush { .. } => "Flush".into(),
        Effect::Below { inode } => format!("Below f{}", inode.0),
        Effect::Fill { ticket, inode, piece, length, .. } => {
            format!("Fill {ticket} f{} {} length={}", inode.0, show(piece), size(*length))
        }
        Effect::ReadBelow { inode, offset, length, below, .. } => {
            let part = part(*offset, (*length).into());
            format!("ReadBelow f{} {part} below={}", inode.0, size((*below).into()))
        }
        Effect::Wait { ticket } => format!("Wait {ticket}"),
        Effect::AskForRoom { round } => format!("AskForRoom {round}"),
        Effect::Reply { ticket, answer } => format!("Reply {ticket} {}", show_answer(answer)),
        abroad => format!("{abroad:?}"),
    }
}

fn settings(words: &[&str]) -> Settings {
    let ready = Space { length: 0, backing: Backing::Ready, fresh_from: 0, ahead: 0 };
    let sinking = Sinking { idle_millis: 100, ..Sinking::NEVER };
    let mut settings =
        Settings { memory: ready, ssd: ready, slot_count: 64, quota_bytes: u64::MAX, sinking };
    for word in words {
        let (name, value) = word.split_once('=').expect("name=value");
        let (value, backing) = match value.strip_suffix("+demand") {
            Some(value) => (value, Backing::OnDemand),
            None => (value, Backing::Ready),
        };
        match name {
            "memory" => {
                settings.memory = Space { length: number(value), backing, fresh_from: 0, ahead: 0 }
            }
            "ssd" => {
                settings.ssd = Space { length: number(value), backing, fresh_from: 0, ahead: 0 }
            }
            "normal" => settings.sinking.normal_below_bytes = number(value),
            "forced" => settings.sinking.forced_below_bytes = number(value),
            "slots" => settings.slot_count = number(value) as u32,
            "quota" => settings.quota_bytes = number(value),
            _ => panic!("no such setting: {name}"),
        }
    }
    settings
}

/// `<slot>:f<file>:<range>@<place>`, in memory; `@ssd<place>`: not in memory.
fn row(word: &str) -> (Inode, Piece) {
    let fields: Vec<&str> = word.split([':', '@']).collect();
    let [slot, file, at, place] = fields[..] else { panic!("not a row: {word}") };
    let (tier, place) = match place.strip_prefix("ssd") {
        Some(place) => (Piece::SSD, place),
        None => (Piece::MEMORY, place),
    };
    let (start, length) = range(at);
    let (slot, place) = (number(slot) as u32, number(place));
    let length_log2 = length.trailing_zeros() as u8;
    (Inode(number(&file[1..])), Piece { start, slot, place, length_log2, tier })
}

/// `f<file>`, or `f<file>:<start>`.
fn early(word: &str) -> (Inode, u64) {
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
        let input = Input::Request { ticket: self.ticket, request };
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
            "rows" => {
                let hidden = words[1..].iter().filter_map(|word| word.strip_prefix('~')).map(row);
                let shown = words[1..].iter().filter(|word| !word.starts_with('~'));
                let shown = shown.map(|word| row(word));
                self.settings.memory.fresh_from = u64::MAX;
                let (target, dropped) = Target::recover(self.settings, shown, hidden, &mut out);
                self.target = Some(target);
                notes = dropped.iter().map(ToString::to_string).collect();
            }
            "pins" => {
                let pinned: Vec<u32> = words[2..].iter().map(|slot| number(slot) as u32).collect();
                step(self, Input::Pins { round: number(words[1]), pinned: &pinned }, &mut out);
            }
            "preallocated" => {
                let outcome = match words[1] {
                    "yes" => Ok(()),
                    "broken" => Err(Errno::EIO),
                    _ => Err(Errno::ENOSPC),
                };
                step(self, Input::Preallocated { outcome }, &mut out);
            }
            "early" | "wanted" | "unwanted" => {
                let pieces: Vec<(Inode, u64)> = words[1..].iter().map(|word| early(word)).collect();
                let inodes: Vec<Inode> = pieces.iter().map(|one| one.0).collect();
                let input = match words[0] {
                    "early" => Input::MakeEarly { inodes: &inodes },
                    "wanted" => Input::Wanted { pieces: &pieces },
                    _ => Input::Unwanted { pieces: &pieces },
                };
                step(self, input, &mut out);
            }
            "sink" | "rise" => {
                let used: Vec<u32> = words[2..].iter().map(|slot| number(slot) as u32).collect();
                let target = self.target.as_mut().expect("a target");
                let mut was_used = |slot| used.contains(&slot);
                let now = number(words[1]) as u32;
                match words[0] {
                    "sink" => target.sink(now, &mut was_used, &mut out),
                    _ => target.rise(now, &mut was_used, &mut out),
                };
            }
            "copied" => {
                let outcome = if words[2] == "yes" { Ok(()) } else { Err(Errno::EIO) };
                step(self, Input::Copied { ticket: number(words[1]), outcome }, &mut out);
            }
            "lend" => self.target.as_mut().expect("a target").lend(number(words[1]), &mut out),
            "given-back" => {
                let (place, length) = range(words[1]);
                let length_log2 = length.trailing_zeros() as u8;
                let outcome = if words[2] == "yes" { Ok(()) } else { Err(Errno::EIO) };
                step(self, Input::GivenBack { place, length_log2, outcome }, &mut out);
            }
            "withdraw" | "room-asked" | "writers" | "tick" => self.wait_line(&words, &mut out),
            _ => self.file_line(&words, &mut out),
        }
        notes.extend(out.iter().map(show_effect));
        notes
    }

    /// About those who wait for room, and time.
    fn wait_line(&mut self, words: &[&str], out: &mut Vec<Effect>) {
        let target = self.target.as_mut().expect("a target");
        let first = words.get(1).map_or(0, |word| number(word));
        match words[0] {
            "tick" => target.step(Input::Tick, out),
            "withdraw" => target.step(Input::Withdraw { ticket: first }, out),
            "room-asked" => {
                let comes = words[2] == "yes";
                target.step(Input::RoomAsked { round: first, comes, goes_on: false }, out);
            }
            _ => target.keep_writers(first as u32, 1000, out),
        }
    }

    fn file_line(&mut self, words: &[&str], out: &mut Vec<Effect>) {
        let inode = Inode(words.get(1).map_or(0, |file| number(&file[1..])));
        let argument = words.get(2).copied().unwrap_or("0..0");
        let chunk = words.get(3).and_then(|word| word.strip_prefix("chunk="));
        let chunk_log2 = chunk.map_or(20, |chunk| number(chunk).ilog2() as u8);
        let ahead = words.iter().find_map(|word| word.strip_prefix("ahead=")).map_or(0, number);
        let (offset, length) = if argument.contains("..") { range(argument) } else { (0, 0) };
        let bytes = vec![0; length as usize];
        let files = words.iter().skip(1).filter(|_| words[0] == "remove");
        let removed: Vec<u8> = files.flat_map(|file| number(&file[1..]).to_le_bytes()).collect();
        let request = match words[0] {
            "map" => Request::MapPieces { inode, chunk_log2, allocate: 1, offset, length, ahead },
            "find" => {
                Request::MapPieces { inode, chunk_log2, allocate: 0, offset, length, ahead: 0 }
            }
            "read" => Request::Read { inode, chunk_log2, offset, length: length as u32 },
            "write" => Request::Write { inode, chunk_log2, offset, cuts: u64::MAX, bytes: &bytes },
            "truncate" => Request::Truncate { inode, chunk_log2, size: number(argument) },
            "punch" => Request::Punch { inode, chunk_log2, offset, length },
            "remove" => Request::Remove { inodes: &removed },
            "usage" => Request::Usage { inode },
            "seek" => Request::SeekData { inode, chunk_log2, offset: number(argument) },
            "space" => Request::Space {},
            "flush" => Request::Flush { inode },
            other => panic!("no such line: {other}"),
        };
        self.request(&request, out);
    }
}

fn run(case: &str) -> String {
    let (input, _) = case.split_once("\n---\n").unwrap_or((case.trim_end(), ""));
    let none = Space { length: 0, backing: Backing::Ready, fresh_from: 0, ahead: 0 };
    let sinking = Sinking::NEVER;
    let settings = Settings { memory: none, ssd: none, slot_count: 0, quota_bytes: 0, sinking };
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
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("testscripts");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).expect("testscripts") {
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
