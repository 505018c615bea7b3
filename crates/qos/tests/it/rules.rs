//! Rules: each key and limit, the order of rules, errors by column, and any text.

use proptest::prelude::*;
use qos::rules::{Facts, Fault, Operation, Pattern, RULES_MAX, Rules, Scope, TEXT_BYTES_MAX};
use qos::rules::{OWN_RULES_ALL_MAX, OWN_RULES_MAX, OWN_TEXT_BYTES_MAX};
use qos::scheduler::{Limits, LimitsError};

fn facts() -> Facts<'static> {
    Facts {
        uid: 1000,
        gid: 100,
        job: b"train.4711",
        program: b"python3",
        dir: b"/data/set",
        tag: b"epoch",
        operation: Operation::Read,
    }
}

/// Rules after these commands.
fn rules(commands: &[&str]) -> Rules {
    let mut rules = Rules::new();
    for command in commands {
        rules.execute(command).unwrap_or_else(|error| panic!("{command}: {error}"));
    }
    rules
}

fn names(rules: &Rules) -> Vec<&str> {
    rules.all_rules().iter().map(|rule| rule.name()).collect()
}

fn matches(expression: &str, facts: &Facts<'_>) -> bool {
    let rules = rules(&[&format!("start one {expression} rate=1")]);
    rules.find_rule(facts).is_some()
}

/// Column and fault of a command after others.
fn fault(before: &[&str], command: &str) -> (usize, Fault) {
    fault_in(&mut rules(before), command)
}

/// The same with these rules.
fn fault_in(rules: &mut Rules, command: &str) -> (usize, Fault) {
    let old: Vec<_> = rules.all_rules().to_vec();
    let error = rules.execute(command).expect_err(command);
    assert_eq!(rules.all_rules(), old, "an error changes nothing");
    (error.at, error.fault)
}

#[test]
fn rules_are_read_as_they_were_written() {
    let before = rules(&[
        "start first jobid={train.* x} & uid={1000-1999} , gid={7} rate=2K bw=500M per=user",
        "start second * weight=300 inflight=4",
        "start third opcode={read} min=1M weight=100 rank=first",
        "start fourth uid={1} rate=5",
        "change fourth rate=0",
    ]);
    let text = before.to_text();
    let after = Rules::from_text(&text).expect(&text);
    assert_eq!(after.all_rules(), before.all_rules(), "{text}");
    assert_eq!(after.to_text(), text);
    let (line, error) = Rules::from_text("start a * rate=1\nstart b * rate=x\n").expect_err("no");
    assert_eq!((line, error.at), (2, 16));
    assert!(before.all_rules().iter().any(|rule| rule.has_key("opcode")));
    assert!(!before.all_rules().iter().any(|rule| rule.has_key("dir")));
}

#[test]
fn each_key_matches_what_it_names() {
    for yes in [
        "*",
        "uid={1000}",
        "uid={1 500-1000}",
        "gid={100}",
        "jobid={train.*}",
        "jobid={*.4711 other}",
        "program={python3}",
        "dir={/}",
        "dir={/data}",
        "dir={/data/set/}",
        "dir={/*/set}",
        "opcode={write read}",
        "tag={e*h}",
        "uid={1000} & opcode={read}",
        "uid={7} & opcode={read} , gid={100}",
        "  uid={ 1000 }&gid={100},uid={3}  ",
    ] {
        assert!(matches(yes, &facts()), "{yes}");
    }
    for no in [
        "uid={1001}",
        "uid={1-999}",
        "gid={1000}",
        "jobid={train}",
        "program={python}",
        "dir={/dat}",
        "dir={/data/set/more}",
        "dir={/*/se}",
        "opcode={write stat}",
        "tag={e*c}",
        "uid={1000} & opcode={write}",
        "uid={7} , uid={8} & gid={100}",
    ] {
        assert!(!matches(no, &facts()), "{no}");
    }
}

#[test]
fn each_operation_has_a_name() {
    for (name, operation) in Operation::ALL {
        let expression = format!("opcode={{{name}}}");
        assert!(matches(&expression, &Facts { operation, ..facts() }), "{name}");
        let other = if operation == Operation::Sync { Operation::Open } else { Operation::Sync };
        assert!(!matches(&expression, &Facts { operation: other, ..facts() }), "{name}");
    }
}

#[test]
fn operations_have_words_for_all_that_move_bytes_and_all_others() {
    for (name, operation) in Operation::ALL {
        let moves_bytes = matches!(name, "read" | "write");
        let facts = Facts { operation, ..facts() };
        assert_eq!(matches("opcode={data}", &facts), moves_bytes, "{name}");
        assert_eq!(matches("opcode={metadata}", &facts), !moves_bytes, "{name}");
        assert!(matches("opcode={metadata data}", &facts), "{name}");
    }
}

#[test]
fn a_rule_behind_one_that_always_matches_first_is_idle() {
    let idle = |commands: &[&str]| -> Vec<(String, String)> {
        let rules = rules(commands);
        let pairs = rules.idle_rules().into_iter();
        pairs.map(|(rule, by)| (rule.name().to_owned(), by.name().to_owned())).collect()
    };
    let pair = |rule: &str, by: &str| (rule.to_owned(), by.to_owned());
    // A new rule stands before the others.
    assert_eq!(idle(&["start a uid={1} rate=1", "start b * rate=1"]), [pair("a", "b")]);
    assert_eq!(idle(&["start b * rate=1", "start a uid={1} rate=1"]), []);
    let narrow = "start a uid={1} & jobid={x} rate=1";
    assert_eq!(idle(&[narrow, "start b jobid={x} rate=2"]), [pair("a", "b")]);
    assert_eq!(idle(&[narrow, "start b jobid={x y} rate=2"]), [], "other texts are not compared");
    let two = "start a uid={1} & jobid={x} , gid={2} rate=1";
    assert_eq!(idle(&[two, "start b jobid={x} rate=2"]), [], "a group is left");
    let both = "start b jobid={x} , gid={2} rate=2";
    assert_eq!(idle(&[two, both, "start c * rate=1"]), [pair("b", "c"), pair("a", "c")]);
}

#[test]
fn directories_of_rules_are_listed() {
    let rules = rules(&["start a dir={/x /y/*} , uid={1} & dir={/z} rate=1"]);
    let dirs: Vec<_> = rules.all_rules().iter().flat_map(|rule| rule.dirs()).collect();
    assert_eq!(dirs, [&Pattern::new("/x"), &Pattern::new("/y/*"), &Pattern::new("/z")]);
    assert_eq!(dirs.iter().filter(|dir| dir.has_star()).count(), 1);
}

#[test]
fn each_limit_is_read() {
    let text = "start r uid={1000} rate=2K bw=3G min=5m weight=7 inflight=9 dirty=2G per=user";
    let rules = rules(&[text]);
    let rule = rules.find_rule(&facts()).expect("a rule");
    let limits = Limits {
        weight: 7,
        bytes_per_second_max: 3 << 30,
        operations_per_second_max: 2_000,
        bytes_per_second_min: 5 << 20,
        in_flight_max: 9,
        dirty_bytes_max: 2 << 30,
    };
    assert_eq!((rule.limits(), rule.scope()), (limits, Scope::User));
    assert_eq!((rule.name(), rule.expression()), ("r", "uid={1000}"));
}

#[test]
fn the_first_rule_that_matches_decides_and_new_ones_come_first() {
    let mut rules = rules(&[
        "start all * rate=10",
        "start mine uid={1000} rate=20",
        "start others uid={2000} rate=30 rank=all",
    ]);
    assert_eq!(names(&rules), ["mine", "others", "all"]);
    assert_eq!(rules.find_rule(&facts()).expect("a rule").name(), "mine");
    rules.execute("change all rank=mine").expect("a change");
    assert_eq!(names(&rules), ["all", "mine", "others"]);
    assert_eq!(rules.find_rule(&facts()).expect("a rule").name(), "all");
    rules.execute("change all rate=11 weight=5").expect("a change");
    assert_eq!(names(&rules), ["all", "mine", "others"], "a change leaves the place");
    let limits = rules.find_rule(&facts()).expect("a rule").limits();
    assert_eq!((limits.operations_per_second_max, limits.weight), (11, 5));
    rules.execute("change all rank=all").expect("before itself: as it is");
    rules.execute("stop all").expect("a stop");
    assert_eq!(names(&rules), ["mine", "others"]);
    let other = Facts { uid: 3, ..facts() };
    assert!(rules.find_rule(&other).is_none());
}

#[test]
fn errors_name_the_column_and_the_fault() {
    let number = |text: &str| Fault::Number(text.to_owned());
    for (command, at, expected) in [
        ("begin r * rate=1", 1, Fault::Expected("start, change or stop")),
        ("start r user={1} rate=1", 9, Fault::UnknownKey("user".to_owned())),
        ("start r uid={x} rate=1", 14, number("x")),
        ("start r uid={4294967296} rate=1", 14, number("4294967296")),
        ("start r uid={5-3} rate=1", 14, Fault::Range("5-3".to_owned())),
        ("start r dir={a/b} rate=1", 14, Fault::RelativeDir("a/b".to_owned())),
        ("start r opcode={fly} rate=1", 17, Fault::UnknownOperation("fly".to_owned())),
        ("start r uid={} rate=1", 14, Fault::Expected("a value, and } at the end")),
        ("start r uid={1", 15, Fault::Expected("a value, and } at the end")),
        ("start r uid=1 rate=1", 13, Fault::Expected("={ and values, such as ={1000}")),
        ("start r rate=1", 9, Fault::UnknownKey("rate".to_owned())),
        ("start r", 8, Fault::Expected("* or a condition such as uid={1000}")),
        ("start r uid={1} & ", 19, Fault::Expected("* or a condition such as uid={1000}")),
        ("start r * rate=1.5", 16, number("1.5")),
        ("start r * rate=-1", 16, number("-1")),
        ("start r * bw=99999999T", 14, number("99999999T")),
        ("start r * speed=1", 11, Fault::UnknownLimit("speed".to_owned())),
        ("start r * rate=1 rate=2", 18, Fault::Repeated("rate".to_owned())),
        ("start r * rate", 11, Fault::Expected("a limit such as rate=100")),
        ("start r * per=host rate=1", 15, Fault::Expected("job or user")),
        ("start r *", 10, Fault::NoLimit),
        ("change r", 9, Fault::NoLimit),
        ("stop r now", 8, Fault::Expected("nothing more")),
        ("stop r", 6, Fault::NoSuchRule),
        ("change r rate=1", 8, Fault::NoSuchRule),
        ("start r * rate=1 rank=x", 23, Fault::NoSuchRule),
        ("start r * weight=0", 11, Fault::Limits(LimitsError::Weight(0))),
        (
            "start \u{e9} * rate=1",
            7,
            Fault::Expected("a name of at most 32 letters, digits, \"_\", \"-\" and \".\""),
        ),
    ] {
        assert_eq!(fault(&[], command), (at, expected), "{command}");
    }
    assert_eq!(fault(&["start r * rate=1"], "start r * rate=2"), (7, Fault::RuleExists));
    let contradiction = fault(&["start r * min=10"], "change r bw=9");
    assert!(matches!(contradiction, (10, Fault::Limits(LimitsError::MinimumAboveCap { .. }))));
    // Rules are kept as lines.
    for text in ["start r jobid={a\nb} rate=1", "start r jobid={a\tb} rate=1"] {
        assert_eq!(fault(&[], text), (17, Fault::ControlCharacter));
    }
    let long = format!("start r * rate=1{}", " ".repeat(TEXT_BYTES_MAX));
    assert_eq!(fault(&[], &long), (1, Fault::TooLong));
}

#[test]
fn errors_say_in_one_line_what_to_do() {
    let mut rules = Rules::new();
    let error = rules.execute("start r user={1} rate=1").expect_err("no such key").to_string();
    assert_eq!(
        error,
        "column 9: unknown key \"user\": use uid, gid, jobid, program, dir, opcode or tag"
    );
    let error = rules.execute("start r opcode={fly} rate=1").expect_err("no such operation");
    assert!(error.to_string().ends_with("read write sync, data or metadata"), "{error}");
}

#[test]
fn the_number_of_rules_is_bounded() {
    let mut rules = Rules::new();
    for number in 0..RULES_MAX {
        rules.execute(&format!("start r{number} * rate=1")).expect("room");
    }
    let error = rules.execute("start more * rate=1").expect_err("too many");
    assert_eq!(error.fault, Fault::TooManyRules);
}

#[test]
fn own_rules_of_users_stand_beside_those_of_the_instance() {
    let mut all = rules(&["start a uid={7} bw=1G", "by 7 start a jobid={j} bw=1M"]);
    all.execute("by 8 start a * rate=5 per=user").expect("a rule");
    let of = |uid: u32, job: &'static [u8]| Facts { uid, job, ..facts() };
    let own = |all: &Rules, uid, job| all.find_own_rule(&of(uid, job)).map(|it| it.own_user());
    assert_eq!(own(&all, 7, b"j"), Some(Some(7)));
    assert_eq!(own(&all, 7, b"k"), None);
    assert_eq!(own(&all, 8, b"j"), Some(Some(8)), "each user has its own");
    assert_eq!(own(&all, 9, b"j"), None);
    // The rule of the instance is found as if there were no others.
    let found =
        all.find_rule(&of(7, b"j")).map(|it| (it.own_user(), it.limits().bytes_per_second_max));
    assert_eq!(found, Some((None, 1 << 30)));
    assert!(all.find_rule(&of(8, b"j")).is_none());
    assert!(all.idle_rules().is_empty(), "they hide nothing of one another");
    let again = Rules::from_text(&all.to_text()).expect("as it was written");
    assert_eq!(again.to_text(), all.to_text());
    assert!(all.to_text().contains("by 8 start a * rate=5 per=user\n"), "{}", all.to_text());
    // Names are those of the user alone, in each command.
    assert_eq!(fault_in(&mut all, "by 9 stop a"), (6, Fault::NoSuchRule));
    assert_eq!(fault_in(&mut all, "by 9 start b * rate=1 rank=a"), (23, Fault::NoSuchRule));
    all.execute("by 7 change a rate=3").expect("its own");
    all.execute("stop a").expect("that of the instance");
    assert_eq!(own(&all, 7, b"j"), Some(Some(7)));
    all.execute("by 7 stop a").expect("its own");
    assert_eq!(own(&all, 7, b"j"), None);
    assert_eq!(own(&all, 8, b"j"), Some(Some(8)));
}

#[test]
fn own_rules_only_limit() {
    for (command, at, expected) in [
        ("by 7 start r uid={8} rate=1", 9, Fault::NotOwnKey("uid".to_owned())),
        ("by 7 start r jobid={a} & gid={8} rate=1", 21, Fault::NotOwnKey("gid".to_owned())),
        ("by 7 start r dir={/a} rate=1", 9, Fault::NotOwnKey("dir".to_owned())),
        ("by 7 start r * weight=10000", 11, Fault::NotOwnLimit("weight".to_owned())),
        ("by 7 start r * rate=1 min=1G", 18, Fault::NotOwnLimit("min".to_owned())),
        ("by 7 start r * dirty=1G", 11, Fault::NotOwnLimit("dirty".to_owned())),
        ("by 7 start r * bw=1", 14, Fault::OwnTooSlow),
        ("by 7 start r *", 10, Fault::NoLimit),
        ("by x start r * rate=1", 4, Fault::Number("x".to_owned())),
        ("by -1 start r * rate=1", 4, Fault::Number("-1".to_owned())),
        ("by 4294967296 stop r", 4, Fault::Number("4294967296".to_owned())),
        ("by 7 by 0 start r * rate=1", 1, Fault::Expected("start, change or stop")),
        ("by 7 start r jobid={a\tb} rate=1", 17, Fault::ControlCharacter),
        ("by", 1, Fault::Expected("start, change or stop")),
    ] {
        assert_eq!(fault(&[], command), (at, expected), "{command}");
    }
    let mut all = rules(&["by 7 start r * bw=64K"]);
    assert_eq!(fault_in(&mut all, "by 7 change r bw=63K"), (13, Fault::OwnTooSlow));
    assert_eq!(
        fault_in(&mut all, "by 7 change r min=1"),
        (10, Fault::NotOwnLimit("min".to_owned()))
    );
    let long = format!("by 7 start r jobid={{{}}} rate=1", "x".repeat(OWN_TEXT_BYTES_MAX));
    assert_eq!(fault(&[], &long), (1, Fault::OwnTooLong));
}

#[test]
fn a_user_with_many_own_rules_leaves_room_for_others() {
    let mut all = Rules::new();
    let mut start = |owner: &str, name: &str| {
        all.execute(&format!("{owner}start {name} * rate=1")).map_err(|error| error.fault)
    };
    for number in 0..OWN_RULES_MAX {
        start("by 7 ", &format!("r{number}")).expect("room");
    }
    assert_eq!(start("by 7 ", "more"), Err(Fault::TooManyRules));
    for user in 8..7 + (OWN_RULES_ALL_MAX / OWN_RULES_MAX) as u32 {
        (0..OWN_RULES_MAX).for_each(|number| {
            start(&format!("by {user} "), &format!("r{number}")).expect("room");
        });
    }
    assert_eq!(start("by 6 ", "more"), Err(Fault::TooManyRules));
    for number in 0..RULES_MAX {
        start("", &format!("r{number}")).expect("those of the instance have room of their own");
    }
    assert_eq!(start("", "more"), Err(Fault::TooManyRules));
}

/// Whether a pattern matches, by trying every length for each star.
fn matches_slowly(pattern: &[u8], name: &[u8]) -> bool {
    match pattern.split_first() {
        None => name.is_empty(),
        Some((b'*', rest)) => (0..=name.len()).any(|length| matches_slowly(rest, &name[length..])),
        Some((letter, rest)) => name.first() == Some(letter) && matches_slowly(rest, &name[1..]),
    }
}

proptest! {
    /// Any text: an error with a column within it, or rules that can be asked.
    #[test]
    fn any_text_is_a_command_or_an_error(text in any::<String>()) {
        let mut rules = Rules::new();
        if let Err(error) = rules.execute(&text) {
            prop_assert!(error.at >= 1 && error.at <= text.chars().count() + 1);
            prop_assert!(!error.to_string().is_empty());
        }
        prop_assert!(rules.find_rule(&facts()).is_none() || rules.all_rules().len() == 1);
    }

    /// Texts made of the words of rules get deeper into the parser.
    #[test]
    fn any_words_are_a_command_or_an_error(
        words in prop::collection::vec(prop::sample::select(vec![
            "by ", "7 ", "start ", "change ", "stop ", "r ", "r", "*", "uid", "gid", "jobid", "dir",
            "opcode", "tag",
            "=", "{", "}", "={", "&", ",", " ", "1", "5-3", "-", "/a", "read", "rate", "bw", "min",
            "weight", "per", "rank", "=1", "=2K", "job", "\u{e9}", "\u{3000}",
        ]), 0..14),
        begins in any::<bool>(),
    ) {
        let mut text = words.concat();
        if begins {
            text.insert_str(0, "start r ");
        }
        let mut rules = rules(&["start r2 * rate=1"]);
        if let Err(error) = rules.execute(&text) {
            prop_assert!(error.at >= 1 && error.at <= text.chars().count() + 1, "{error} in {text:?}");
        }
    }

    /// An expression that was read is read again from what a rule shows of it, with the same meaning.
    #[test]
    fn expressions_are_shown_as_they_are_read(
        uid in 0_u32..4, gid in 0_u32..4, job in "[ab*]{1,4}", is_or in any::<bool>(),
        asked in (0_u32..4, 0_u32..4, "[ab]{0,4}"),
    ) {
        let mark = if is_or { "," } else { "&" };
        let text = format!("uid={{{uid}}} {mark} gid={{{gid}}} & jobid={{{job}}}");
        let first = rules(&[&format!("start r {text} rate=1")]);
        prop_assert_eq!(first.all_rules()[0].expression(), &text);
        let facts = Facts { uid: asked.0, gid: asked.1, job: asked.2.as_bytes(), ..facts() };
        let rest = asked.1 == gid && matches_slowly(job.as_bytes(), asked.2.as_bytes());
        let expected = if is_or { asked.0 == uid || rest } else { asked.0 == uid && rest };
        prop_assert_eq!(first.find_rule(&facts).is_some(), expected);
    }

    /// Stars match as a search over all lengths does.
    #[test]
    fn patterns_match_as_a_search_does(pattern in "[ab*]{0,7}", name in "[ab]{0,8}") {
        let expected = matches_slowly(pattern.as_bytes(), name.as_bytes());
        prop_assert_eq!(Pattern::new(&pattern).matches(name.as_bytes()), expected);
    }
}
