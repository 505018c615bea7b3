//! A headless Chromium, driven over two pipes by its debugging protocol: JSON messages that end
//! with a NUL.

use super::TIMEOUT;
use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// The program; `None`: there is none.
pub(crate) fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let all = names.iter().flat_map(|name| dirs.iter().map(move |dir| dir.join(name)));
    all.into_iter().find(|path| path.is_file())
}

/// A browser with one page.
pub(crate) struct Browser {
    child: Child,
    input: File,
    messages: Receiver<Value>,
    session: Option<String>,
    number: u64,
    /// Errors and warnings of the console, and exceptions.
    pub(crate) complaints: Vec<String>,
    /// Holds the pipes and the browser's own files.
    _dir: tempfile::TempDir,
}

fn pipe(path: &Path) -> File {
    let made = Command::new("mkfifo").arg(path).status().expect("mkfifo runs");
    assert!(made.success());
    // Open in both directions, so that no open waits for the other side.
    OpenOptions::new().read(true).write(true).open(path).expect("a pipe")
}

impl Browser {
    /// Starts `program` with an empty page.
    pub(crate) fn start(program: &Path) -> Browser {
        let dir = tempfile::tempdir().expect("a directory");
        let input = pipe(&dir.path().join("in"));
        let output = pipe(&dir.path().join("out"));
        // The protocol uses descriptors 3 and 4.
        let script = "exec \"$0\" --headless --remote-debugging-pipe --no-sandbox --disable-gpu \
                      --disable-dev-shm-usage --disable-background-networking --no-first-run \
                      --hide-scrollbars --user-data-dir=\"$1\" 3<\"$1/in\" 4>\"$1/out\"";
        let child = Command::new("sh")
            .args(["-c", script])
            .args([program, dir.path()])
            .env("HOME", dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a browser");
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            let parts = BufReader::new(output).split(0).map_while(Result::ok);
            let all = parts.flat_map(|bytes| serde_json::from_slice::<Value>(&bytes));
            for message in all {
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let mut browser = Browser {
            child,
            input,
            messages,
            session: None,
            number: 0,
            complaints: Vec::new(),
            _dir: dir,
        };
        let page = browser.call("Target.createTarget", &json!({ "url": "about:blank" }));
        let target = json!({ "targetId": page["targetId"], "flatten": true });
        let session = browser.call("Target.attachToTarget", &target);
        browser.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), &json!({}));
        }
        browser
    }

    /// Calls a method and waits for its result.
    fn call(&mut self, method: &str, params: &Value) -> Value {
        self.number += 1;
        let mut message = json!({ "id": self.number, "method": method, "params": params });
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.input.write_all(&bytes).expect("the browser reads");
        loop {
            let answer = self.messages.recv_timeout(TIMEOUT).expect("the browser answers");
            if answer["id"] == self.number {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].clone();
            }
            self.note(&answer);
        }
    }

    fn note(&mut self, event: &Value) {
        let params = &event["params"];
        let is_complaint = match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => true,
            Some("Runtime.consoleAPICalled") => {
                params["type"] == "error" || params["type"] == "warning"
            }
            Some("Log.entryAdded") => {
                params["entry"]["level"] == "error" || params["entry"]["level"] == "warning"
            }
            _ => false,
        };
        if is_complaint {
            self.complaints.push(params.to_string());
        }
    }

    /// Shows an address.
    pub(crate) fn go(&mut self, url: &str) {
        self.call("Page.navigate", &json!({ "url": url }));
    }

    /// A window of this size, with this colour scheme: `light` or `dark`.
    pub(crate) fn resize(&mut self, width: u32, height: u32, scheme: &str) {
        let size =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", &size);
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call("Emulation.setEmulatedMedia", &json!({ "features": features }));
    }

    /// The value of an expression in the page.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let params =
            json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let result = self.call("Runtime.evaluate", &params);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {result}");
        result["result"]["value"].clone()
    }

    /// The visible part of the page as PNG.
    pub(crate) fn picture(&mut self) -> Vec<u8> {
        let result = self.call("Page.captureScreenshot", &json!({ "format": "png" }));
        from_base64(result["data"].as_str().expect("a picture"))
    }
}

fn from_base64(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digit = |byte: u8| DIGITS.iter().position(|one| *one == byte);
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0_usize, 0);
    for value in text.bytes().filter_map(digit) {
        bits = (bits << 6 | value) & 0xffff;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from(bits >> count & 0xff).expect("a byte"));
        }
    }
    bytes
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It ends its children, and waits for them; one that does not is killed.
        let _ = self.input.write_all(b"{\"id\":0,\"method\":\"Browser.close\"}\0");
        let since = Instant::now();
        while self.child.try_wait().is_ok_and(|ended| ended.is_none()) && since.elapsed() < TIMEOUT
        {
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
