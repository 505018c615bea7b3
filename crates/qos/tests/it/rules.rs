//! Rules: each key and limit, the order of rules, errors by column, and any text.

use proptest::prelude::*;
use qos::rules::{Facts, Fault, Operation, Pattern, RULES_MAX, Rules, Scope, TEXT_BYTES_MAX};
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
    let mut rules = rules(before);
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
            "start ", "change ", "stop ", "r ", "r", "*", "uid", "gid", "jobid", "dir", "opcode", "tag",
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
