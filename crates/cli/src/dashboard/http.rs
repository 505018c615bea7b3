//! HTTP/1.1 for the dashboard: one GET request for each connection, and its answer.
//!
//! Every request has bounds: its size, the time until it is complete, and the time until its answer is
//! taken. Not here: whether it has the token (`token`), and the contents of answers (`mod`).

use percent_encoding::percent_decode_str;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Bytes of a request. A browser sends less than 2 KiB.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// Headers of a request. A browser sends about 15.
const HEADERS_MAX: usize = 64;
/// Time until a request is complete.
const REQUEST_TIME: Duration = Duration::from_secs(5);
/// Time until an answer is taken.
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// Nothing is loaded from elsewhere, and only the page's own script and style are used.
const POLICY: &str = "default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";

/// A request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct HttpRequest {
    /// The path, without the query.
    pub(super) path: String,
    query: String,
    /// The word behind `Authorization: Bearer`, which a collector of metrics sends.
    bearer: Option<String>,
}

impl HttpRequest {
    /// The secret that it has: in the query, or in its header.
    pub(super) fn token(&self) -> Option<String> {
        self.value("token").or_else(|| self.bearer.clone())
    }

    /// A value of the query.
    pub(super) fn value(&self, name: &str) -> Option<String> {
        let mut pairs = self.query.split('&').filter_map(|pair| pair.split_once('='));
        let (_, value) = pairs.find(|(one, _)| *one == name)?;
        Some(percent_decode_str(value).decode_utf8_lossy().into_owned())
    }
}

/// An answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    status: &'static str,
    kind: &'static str,
    /// The word that the page's script and style carry.
    nonce: Option<String>,
    body: Vec<u8>,
}

impl Answer {
    /// The page; its script and style carry `nonce`.
    pub(super) fn page(text: String, nonce: String) -> Answer {
        let body = text.into_bytes();
        Answer { status: "200 OK", kind: "text/html; charset=utf-8", nonce: Some(nonce), body }
    }

    /// Figures.
    pub(super) fn json(value: &serde_json::Value) -> Answer {
        let body = value.to_string().into_bytes();
        Answer { status: "200 OK", kind: "application/json", nonce: None, body }
    }

    /// Metrics.
    pub(super) fn metrics(text: String) -> Answer {
        let kind = "text/plain; version=0.0.4; charset=utf-8";
        Answer { status: "200 OK", kind, nonce: None, body: text.into_bytes() }
    }

    /// A refusal, in one line.
    pub(super) fn refusal(status: &'static str, why: &str) -> Answer {
        let body = format!("{why}\n").into_bytes();
        Answer { status, kind: "text/plain; charset=utf-8", nonce: None, body }
    }

    fn to_bytes(&self) -> Vec<u8> {
        let own = self.nonce.as_ref().map_or_else(String::new, |nonce| {
            format!("; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'")
        });
        let mut head = format!(
            "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\
             Cache-Control: no-store\r\nContent-Security-Policy: {POLICY}{own}\r\n\
             Referrer-Policy: no-referrer\r\nX-Content-Type-Options: nosniff\r\n",
            self.status,
            self.kind,
            self.body.len()
        );
        if self.status.starts_with("405") {
            head += "Allow: GET\r\n";
        }
        head += "\r\n";
        [head.as_bytes(), &self.body].concat()
    }
}

/// The request that `bytes` begin; `None`: it is not complete yet.
fn parse(bytes: &[u8]) -> Result<Option<HttpRequest>, Answer> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if bytes.len() < REQUEST_BYTES_MAX => return Ok(None),
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            let why = "the request is too long";
            return Err(Answer::refusal("431 Request Header Fields Too Large", why));
        }
        Err(_) => return Err(Answer::refusal("400 Bad Request", "this is no HTTP request")),
    }
    if request.method != Some("GET") {
        return Err(Answer::refusal("405 Method Not Allowed", "the dashboard only shows: use GET"));
    }
    let target = request.path.unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut headers = request.headers.iter();
    let bearer = headers.find(|one| one.name.eq_ignore_ascii_case("authorization"));
    let bearer = bearer.and_then(|one| std::str::from_utf8(one.value).ok());
    let bearer = bearer.and_then(|text| text.strip_prefix("Bearer ")).map(str::to_owned);
    Ok(Some(HttpRequest { path: path.to_owned(), query: query.to_owned(), bearer }))
}

/// The time that is left until `end`, as a socket takes it.
fn left(end: Instant) -> std::io::Result<Duration> {
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Reads a request. `None`: the connection ended, and nobody is there to be answered.
pub(super) fn read(stream: &mut TcpStream) -> Option<Result<HttpRequest, Answer>> {
    let end = Instant::now() + REQUEST_TIME;
    let (mut bytes, mut part) = (Vec::new(), [0; 2048]);
    loop {
        let room = part.len().min(REQUEST_BYTES_MAX.saturating_sub(bytes.len()));
        let read = left(end).and_then(|time| {
            stream.set_read_timeout(Some(time))?;
            stream.read(part.get_mut(..room).unwrap_or_default())
        });
        match read {
            Ok(0) => return None,
            Ok(count) => bytes.extend_from_slice(part.get(..count).unwrap_or_default()),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                let why = "the request is not complete";
                return Some(Err(Answer::refusal("408 Request Timeout", why)));
            }
            Err(_) => return None,
        }
        match parse(&bytes) {
            Ok(None) => {}
            Ok(Some(request)) => return Some(Ok(request)),
            Err(answer) => return Some(Err(answer)),
        }
    }
}

/// Writes an answer. A reader that does not take it in time gets no more of it.
pub(super) fn write(stream: &mut TcpStream, answer: &Answer) {
    let end = Instant::now() + ANSWER_TIME;
    let bytes = answer.to_bytes();
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        let written = left(end).and_then(|time| {
            stream.set_write_timeout(Some(time))?;
            stream.write(rest)
        });
        match written {
            Ok(0) => return,
            Ok(count) => rest = rest.get(count..).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn status(bytes: &[u8]) -> &'static str {
        parse(bytes).expect_err("a refusal").status
    }

    #[test]
    fn a_request_is_read_when_it_is_complete() {
        let text = b"GET /api/job?job=a%2Fb%20%25&token=12&x HTTP/1.1\r\nHost: a\r\n\r\n";
        for length in 0..text.len() {
            assert_eq!(parse(&text[..length]), Ok(None), "{length}");
        }
        let request = parse(text).expect("a request").expect("complete");
        assert_eq!(request.path, "/api/job");
        assert_eq!(request.value("job").as_deref(), Some("a/b %"));
        assert_eq!(request.value("token").as_deref(), Some("12"));
        assert_eq!((request.value("x"), request.value("")), (None, None));
        assert_eq!(request.token().as_deref(), Some("12"));
        let text = b"GET /metrics HTTP/1.1\r\nHost: a\r\nauthorization: Bearer 34\r\n\r\n";
        let request = parse(text).expect("a request").expect("complete");
        assert_eq!((request.value("token"), request.token().as_deref()), (None, Some("34")));
        let text = b"GET / HTTP/1.1\r\nAuthorization: Basic 34\r\n\r\n";
        assert_eq!(parse(text).expect("a request").expect("complete").token(), None);
    }

    #[test]
    fn other_methods_and_long_requests_are_refused() {
        for method in ["POST", "PUT", "HEAD", "OPTIONS", "get"] {
            assert!(status(format!("{method} / HTTP/1.1\r\n\r\n").as_bytes()).starts_with("405"));
        }
        assert!(status(b"\x16\x03\x01\x02\x00").starts_with("400"));
        let long = format!("GET /{} HTTP/1.1\r\n", "a".repeat(REQUEST_BYTES_MAX));
        assert!(status(long.as_bytes()).starts_with("431"));
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(HEADERS_MAX + 1));
        assert!(status(many.as_bytes()).starts_with("431"));
    }

    #[test]
    fn an_answer_forbids_everything_from_outside() {
        let head = |answer: &Answer| String::from_utf8(answer.to_bytes()).expect("text");
        let page = head(&Answer::page("<p>".into(), "0a".into()));
        assert!(page.contains("default-src 'none'") && page.contains("script-src 'nonce-0a'"));
        assert!(page.ends_with("\r\n\r\n<p>") && page.contains("Content-Length: 3\r\n"));
        let refusal = head(&Answer::refusal("403 Forbidden", "no"));
        assert!(refusal.starts_with("HTTP/1.1 403 Forbidden\r\n") && refusal.ends_with("\r\nno\n"));
        assert!(refusal.contains("Cache-Control: no-store\r\n") && !refusal.contains("nonce"));
    }

    proptest! {
        #[test]
        fn no_bytes_break_the_parser(bytes: Vec<u8>, query in ".*") {
            let _ = parse(&bytes);
            let request = HttpRequest { path: String::new(), query, bearer: None };
            let _ = request.value("token");
        }
    }
}
