//! The page of `forebay dashboard` in a headless Chromium: its values equal `forebay status
//! --json`, the console has no complaint, and everything is readable, in windows of two sizes,
//! light and dark.

use super::super::support::browser::{self, Browser};
use super::super::support::{Instance, TIMEOUT, skip, text, wait_for};
use super::Dashboard;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Instant;

const SECTIONS: [&str; 9] =
    ["overview", "nodes", "jobs", "files", "movement", "placement", "damage", "events", "history"];

/// Texts of the page whose contrast with what is behind them is below 4.5, and elements that are wider
/// than the window without a scroll bar of their own.
const UNREADABLE: &str = include_str!("unreadable.js");

/// The exact values of the page, by key.
const VALUES: &str = r##"Object.fromEntries([...document.querySelectorAll("#section [data-value]")]
    .map((one) => [one.dataset.key, Number(one.dataset.value)]))"##;

/// The values that the page should have, from the status.
fn expected(section: &str, status: &Value) -> Vec<(String, u64)> {
    let states: Vec<&Value> =
        status["daemons"].as_array().expect("daemons").iter().map(|one| &one["state"]).collect();
    let number =
        |one: &Value, key: &str| one[key].as_u64().unwrap_or_else(|| panic!("{key} of {one}"));
    let sum = |key: &str| states.iter().map(|one| number(one, key)).sum::<u64>();
    let same =
        |keys: &[&str]| keys.iter().map(|&key| (key.to_owned(), sum(key))).collect::<Vec<_>>();
    let of_writeback = |key: &str| (key.to_owned(), number(&status["writeback"], key));
    match section {
        "overview" => {
            let mut all = same(&["files", "writers_waiting", "pages_damaged"]);
            all.push(("memory_used".to_owned(), sum("memory_total") - sum("memory_free")));
            all.push(("ssd_used".to_owned(), sum("ssd_total") - sum("ssd_free")));
            all.extend(["bytes_dirty", "failed"].map(of_writeback));
            all
        }
        "nodes" => states
            .iter()
            .enumerate()
            .flat_map(|(at, one)| {
                ["memory_free", "files"].map(|key| (format!("daemon{at}.{key}"), number(one, key)))
            })
            .collect(),
        "movement" => {
            let mut all = same(&["writers_waiting", "write_waits"]);
            all.extend(
                ["dirty", "bytes_dirty", "bytes_written", "failed", "conflicts"].map(of_writeback),
            );
            all
        }
        "damage" => {
            same(&["pages_damaged", "log_full", "log_bytes", "wire_tampered", "wire_refused"])
        }
        "placement" => vec![("stripe_size".to_owned(), number(&status["settings"], "stripe_size"))],
        _ => Vec::new(),
    }
}

/// Waits until the page shows a section, or a job in it, and fails with what it shows instead.
fn show(browser: &mut Browser, place: &str) {
    browser.value(&format!("location.hash = '#{place}'"));
    let (section, last) = match place.split_once('/') {
        Some((section, _)) => (section, "mean time"),
        None => (place, ""),
    };
    let shown = format!(
        "(() => {{
            const link = document.querySelector('nav [aria-current]');
            const section = document.getElementById('section'), text = section.textContent;
            return link?.hash === '#{section}' && section.querySelector('h2') !== null &&
                !text.includes('Waiting for') && text.includes('{last}');
        }})()"
    );
    let since = Instant::now();
    while browser.value(&shown) != true {
        let text = browser.value("document.body.innerText");
        let complaints = &browser.complaints;
        assert!(since.elapsed() < TIMEOUT, "{place} is not shown:\n{text}\n{complaints:?}");
    }
}

/// A job that reads and writes until it is told to stop, or the test fails.
struct BusyJob {
    child: Child,
    stop: PathBuf,
}

/// The name of the job, and how an address has it: markup, if the page took it for text of its own.
const JOB: &str = "climate<i>&\"%";
const JOB_IN_ADDRESS: &str = "jobs/climate%3Ci%3E%26%22%25";

impl BusyJob {
    fn start(instance: &Instance, job: &str) -> BusyJob {
        let stop = instance.dir.path().join("stop");
        let script = format!(
            "cd /forebay && mkdir -p out && for i in 1 2 3 4 5 6; do
                 dd if=/dev/zero of=base.$i bs=1M count=24 2>/dev/null
             done
             while [ ! -e {0} ] && [ -e {1} ]; do
                 dd if=/dev/zero of=out/field.dat bs=64k count=300 2>/dev/null
                 dd if=out/field.dat of=/dev/null bs=64k 2>/dev/null
                 for i in 1 2 3 4 5 6 7 8; do echo $i >'out/{2}.'$i; done
             done",
            stop.display(),
            instance.dir.path().display(),
            // Names of files that would be markup, too.
            if job == JOB { "<b>step&" } else { "step" }
        );
        let mut command = instance.command("run");
        command.args(["--job", job, "--", "sh", "-c", &script]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        BusyJob { child: command.spawn().expect("forebay runs"), stop }
    }

    fn stop(&mut self) -> bool {
        let _ = fs::write(&self.stop, "");
        self.child.wait().is_ok_and(|status| status.success())
    }
}

impl Drop for BusyJob {
    fn drop(&mut self) {
        self.stop();
    }
}

#[test]
fn the_page_is_right_and_readable_in_a_browser() {
    let Some(program) = browser::program() else {
        return skip("no chromium: 'scripts/install-deps.sh large' installs it");
    };
    let images = std::env::var_os("UPDATE_IMAGES").map(PathBuf::from);
    let backing = tempfile::tempdir().expect("a directory");
    let store = text(backing.path().as_os_str().as_encoded_bytes());
    let options = ["--local", "4", "--memory", "64MiB", "--ssd", "256MiB", "--backing", &store];
    let instance = Instance::start("page", &options);
    let dashboard = Dashboard::start(&instance, &["--interval", "500ms"]);
    let mut job = BusyJob::start(&instance, if images.is_some() { "climate" } else { JOB });
    let mut browser = Browser::start(&program);
    browser.go(&dashboard.url());
    // The history has minutes, of which pictures show a few.
    let samples = if images.is_some() { 60..=420 } else { 4..=4 };
    for samples in samples.step_by(60) {
        wait_for("the job", || {
            let state = dashboard.state();
            let written = state["jobs"][0]["written_bytes_per_second"].as_f64();
            written > Some(0.0) && state["last"].as_u64() > Some(samples)
        });
    }
    all_is_readable(&mut browser, images.as_deref());
    assert!(job.stop());
    let flushed = instance.command("flush").output().expect("forebay runs");
    assert!(flushed.status.success(), "{flushed:?}");
    values_are_those_of_status(&mut browser, &instance);
    odd_texts_are_harmless(&mut browser, images.is_none());
    assert_eq!(browser.value("document.getElementById('health').textContent"), "healthy");
    assert_eq!(browser.complaints, Vec::<String>::new());
    ends_are_shown(&mut browser, &instance, dashboard);
}

/// Each section in windows of two sizes, light and dark, while a job runs.
fn all_is_readable(browser: &mut Browser, images: Option<&Path>) {
    if images.is_some() {
        browser.value(RENAME);
    }
    for (width, height, scheme) in
        [(1280, 1000, "light"), (1280, 1000, "dark"), (390, 844, "light"), (390, 844, "dark")]
    {
        browser.resize(width, height, scheme);
        let job = if images.is_some() { "jobs/climate" } else { JOB_IN_ADDRESS };
        for place in SECTIONS.into_iter().chain([job]) {
            show(browser, place);
            let faults = browser.value(UNREADABLE);
            assert_eq!(faults, json!([]), "{place} at {width}, {scheme}");
            if let Some(images) = images {
                keep_picture(browser, images, place, (width, scheme));
            }
        }
    }
}

/// Nothing changes any more: each exact value of the page is that of `status --json`.
fn values_are_those_of_status(browser: &mut Browser, instance: &Instance) {
    browser.resize(1280, 1000, "light");
    for section in SECTIONS {
        show(browser, section);
        let since = Instant::now();
        loop {
            let (status, values) = (instance.status(), browser.value(VALUES));
            let right = expected(section, &status);
            if right.iter().all(|(key, value)| values[key].as_u64() == Some(*value)) {
                break;
            }
            assert!(since.elapsed() < TIMEOUT, "{section}: {values} is not {right:?}");
        }
    }
}

/// Text of others is no markup, and an address that says nothing breaks nothing.
fn odd_texts_are_harmless(browser: &mut Browser, is_odd: bool) {
    if is_odd {
        show(browser, JOB_IN_ADDRESS);
        wait_for("all files of the job", || {
            let text = browser.value("document.getElementById('section').textContent");
            let text = text.as_str().expect("a text");
            text.contains(&format!("Job {JOB}")) && text.contains("<b>step&.1")
        });
        assert_eq!(
            browser.value("document.querySelectorAll('#section :is(i:not(.bar *), b)').length"),
            0
        );
    }
    for hash in ["#jobs/%E0%A4%A", "#constructor", "#", "#jobs/none"] {
        browser.value(&format!("location.hash = '{hash}'"));
        show(browser, "events");
    }
}

/// Pictures of the documents: section, width, scheme.
const PICTURES: [(&str, u32, &str); 5] = [
    ("overview", 1280, "light"),
    ("nodes", 1280, "dark"),
    ("jobs/climate", 1280, "light"),
    ("overview", 390, "dark"),
    ("history", 1280, "light"),
];
/// True once the history is shown: 4 are texts. The place of a test's history, which differs in each run,
/// becomes the usual one.
const IS_READ: &str = "(() => {
    const words = document.createTreeWalker(document.querySelector('main'), 4);
    let isRead = true;
    while (words.nextNode()) {
        const word = words.currentNode;
        isRead &&= !word.data.includes('is being read');
        word.data = word.data.replace(/in \\S+history.db/, 'in ~/.local/share/forebay/history.db');
    }
    return isRead;
})()";
/// Shows another name in pictures, because that of the test's instance differs in each run.
const RENAME: &str = "(() => {
    const name = document.getElementById('name');
    const rename = () => { if (name.textContent !== 'default') name.textContent = 'default'; };
    new MutationObserver(rename).observe(name, { childList: true, characterData: true, subtree: true });
})()";
/// Pixels of a picture.
const PICTURE_HEIGHT_MAX: u32 = 1200;
/// Bytes of a picture.
const PICTURE_BYTES_MAX: usize = 200_000;

/// Keeps a picture of the page, if the documents show it.
fn keep_picture(browser: &mut Browser, images: &Path, section: &str, (width, scheme): (u32, &str)) {
    if !PICTURES.contains(&(section, width, scheme)) {
        return;
    }
    wait_for("the history", || browser.value(IS_READ) == true);
    // As high as its contents.
    let height = browser.value("Math.ceil(document.body.getBoundingClientRect().height)");
    let height = height.as_u64().and_then(|height| u32::try_from(height).ok()).expect("a number");
    browser.resize(width, height.min(PICTURE_HEIGHT_MAX), scheme);
    let picture = browser.picture();
    assert!(picture.len() < PICTURE_BYTES_MAX, "{section}: {} bytes", picture.len());
    let name = format!("dashboard-{}-{width}-{scheme}.png", section.replace('/', "-"));
    fs::write(images.join(name), picture).expect("written");
}

/// A daemon, then the dashboard itself ends: the page says so, and keeps what it had.
fn ends_are_shown(browser: &mut Browser, instance: &Instance, dashboard: Dashboard) {
    show(browser, "damage");
    instance.daemon(3).kill();
    let text = "document.body.innerText";
    wait_for("a dead daemon", || {
        browser
            .value(text)
            .as_str()
            .is_some_and(|text| text.contains("1 of 4 daemons without an answer"))
    });
    drop(dashboard);
    wait_for("a dead dashboard", || {
        browser.value(text).as_str().is_some_and(|text| {
            text.contains("The dashboard does not answer since") && text.contains("state unknown")
        })
    });
    // The page of a wrong token is one line.
    let dashboard = Dashboard::start(instance, &[]);
    browser.go(&format!("http://{}/?token=0", dashboard.at));
    wait_for("a refusal", || {
        browser
            .value(text)
            .as_str()
            .is_some_and(|text| text.trim().lines().count() == 1 && text.contains("token"))
    });
    instance.start_again();
}
