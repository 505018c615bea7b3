//! Requests to a store: signed, sent, and sent again while it says that it is busy, or says nothing. What
//! they are signed with is found by `credentials`.

use crate::answers::Wrong;
use crate::place::Place;
use crate::{credentials, files};
use http::{HeaderMap, HeaderName, Method, Request, Response, StatusCode};
use reqsign_aws_v4::Credential;
use reqsign_core::Signer;
use std::future::Future;
use std::io::{self, Read as _};
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};
use ureq::tls::{PemItem, RootCerts, TlsConfig};
use ureq::{Agent, Body};

/// So long something is tried again without a byte more: less than who waits for it does.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// And so long the first request of all, which somebody who starts an instance waits for.
pub(crate) const FIRST_PATIENCE: Duration = Duration::from_secs(5);
/// The first pause between two tries; each is twice as long as the one before,
const PAUSE: Duration = Duration::from_millis(50);
/// up to this.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// A store that is there is reached in this time,
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// answers in this,
const ANSWER_TIME: Duration = Duration::from_secs(8);
/// and goes on sending in this.
const READ_TIME: Duration = Duration::from_secs(8);
/// Bytes of an answer that is read whole: a page of a listing has about 400 KiB.
const WHOLE_BYTES_MAX: u64 = 16 << 20;
/// Bytes of what a store says is wrong.
const WRONG_BYTES_MAX: u64 = 64 << 10;
/// Connections that are kept: as many as requests are under way at once.
const CONNECTIONS_MAX: usize = 64;
/// Where systems have the certificates of those whom they trust.
const CERTIFICATES: [&str; 3] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
];

/// What is said to a store.
pub(crate) struct Client {
    pub(crate) place: Place,
    agent: Agent,
    /// None for a store that takes what is not signed.
    signer: Option<Signer<Credential>>,
}

/// Something that is tried again for a while.
pub(crate) struct Tries {
    began: Instant,
    patience: Duration,
    pause: Duration,
}

impl Tries {
    pub(crate) fn new(patience: Duration) -> Tries {
        Tries { began: Instant::now(), patience, pause: PAUSE }
    }

    /// Waits, if it may be tried again: not all who were refused at once come again at once.
    pub(crate) fn again(&mut self) -> bool {
        let passed = self.began.elapsed();
        let spread = u64::from(passed.subsec_nanos()).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let half = self.pause / 2;
        let pause = half + Duration::from_nanos(spread).min(half);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        let may = passed + pause < self.patience;
        if may {
            std::thread::sleep(pause);
        }
        may
    }
}

/// Why a request failed.
enum Failed {
    /// It may be otherwise next time.
    ForNow(io::Error),
    ForGood(io::Error),
}

impl Client {
    /// Nothing is sent yet.
    ///
    /// # Errors
    /// The certificates that are named can not be read.
    pub(crate) fn new(place: Place) -> io::Result<Client> {
        let tls = TlsConfig::builder().root_certs(certificates(place.certificates.as_deref())?);
        let config = Agent::config_builder()
            .tls_config(tls.build())
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("forebay/", env!("CARGO_PKG_VERSION")))
            .max_idle_connections(CONNECTIONS_MAX)
            .max_idle_connections_per_host(CONNECTIONS_MAX)
            .timeout_connect(Some(CONNECT_TIME))
            .timeout_recv_response(Some(ANSWER_TIME))
            .timeout_per_read(Some(READ_TIME))
            .timeout_per_write(Some(READ_TIME))
            .build();
        let signer = (!place.is_public).then(|| credentials::signer(&place.region));
        Ok(Client { place, agent: config.into(), signer })
    }

    /// Asks until there is an answer that is one.
    ///
    /// # Errors
    /// ENOENT: there is no such thing. EACCES: it is not permitted. ESTALE: it is another version than
    /// the headers ask for. Else what the store said, or why it can not be reached.
    pub(crate) fn ask(
        &self,
        method: &Method,
        url: &str,
        headers: &[(&'static str, String)],
        tries: &mut Tries,
    ) -> io::Result<Response<Body>> {
        let headers = map_of(headers.iter().map(|(name, value)| (*name, value)))?;
        let ask = Ask { method, url, headers: &headers, body: None, patience: ANSWER_TIME };
        loop {
            match self.ask_once(&ask) {
                Ok(response) => return Ok(response),
                Err(Failed::ForGood(error)) => return Err(error),
                Err(Failed::ForNow(error)) if !tries.again() => return Err(error),
                Err(Failed::ForNow(_)) => {}
            }
        }
    }

    /// As `ask`, for an answer that is taken whole.
    ///
    /// # Errors
    /// As of `ask`.
    pub(crate) fn ask_whole(&self, url: &str, patience: Duration) -> io::Result<Vec<u8>> {
        let (method, headers) = (&Method::GET, &HeaderMap::new());
        let ask = Ask { method, url, headers, body: None, patience: ANSWER_TIME };
        self.tell(&ask, patience).map(|(_, bytes)| bytes)
    }

    /// Sends something until there is an answer, and takes that whole. It may have been done more often
    /// than once.
    ///
    /// # Errors
    /// As of `ask`.
    pub(crate) fn tell(
        &self,
        ask: &Ask<'_>,
        patience: Duration,
    ) -> io::Result<(HeaderMap, Vec<u8>)> {
        let mut tries = Tries::new(patience);
        loop {
            let error = match self.tell_once(ask) {
                Ok(told) => return Ok(told),
                Err(Failed::ForGood(error)) => return Err(error),
                Err(Failed::ForNow(error)) => error,
            };
            if !tries.again() {
                return Err(error);
            }
        }
    }

    fn tell_once(&self, ask: &Ask<'_>) -> Result<(HeaderMap, Vec<u8>), Failed> {
        let (parts, body) = self.ask_once(ask)?.into_parts();
        let mut bytes = Vec::new();
        let read = body.into_reader().take(WHOLE_BYTES_MAX).read_to_end(&mut bytes);
        read.map_err(Failed::ForNow)?;
        // What takes long is answered before it is done: then it says that it failed in so many words.
        let code = if ask.method == Method::GET { String::new() } else { Wrong::of(&bytes).code };
        match code.as_str() {
            "" => Ok((parts.headers, bytes)),
            "InternalError" | "SlowDown" | "ServiceUnavailable" | "RequestTimeout" => {
                Err(Failed::ForNow(io::Error::other(format!("the store says {code}"))))
            }
            _ => Err(Failed::ForGood(io::Error::other(format!("the store says {code}")))),
        }
    }

    fn ask_once(&self, ask: &Ask<'_>) -> Result<Response<Body>, Failed> {
        let mut request = Request::builder().method(ask.method).uri(ask.url);
        if let Some(headers) = request.headers_mut() {
            headers.extend(ask.headers.clone());
        }
        let wrong = |error: http::Error| Failed::ForGood(io::Error::other(error));
        let (mut parts, ()) = request.body(()).map_err(wrong)?.into_parts();
        if let Some(signer) = &self.signer {
            wait(signer.sign(&mut parts, None)).map_err(|error| {
                let what = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE";
                let text = format!("no credentials for the bucket: {error}: {what}");
                Failed::ForGood(io::Error::new(io::ErrorKind::PermissionDenied, text))
            })?;
        }
        let response = match ask.body {
            None => self.agent.run(Request::from_parts(parts, ())),
            Some(body) => {
                let request = self.agent.configure_request(Request::from_parts(parts, body));
                self.agent.run(request.timeout_recv_response(Some(ask.patience)).build())
            }
        };
        let response = match response {
            Ok(response) => response,
            Err(error) => return Err(Failed::ForNow(io::Error::other(error))),
        };
        match response.status() {
            status if status.is_success() => Ok(response),
            _ => Err(refused(response)),
        }
    }
}

/// A request.
pub(crate) struct Ask<'a> {
    pub(crate) method: &'a Method,
    pub(crate) url: &'a str,
    pub(crate) headers: &'a HeaderMap,
    /// None of what has none.
    pub(crate) body: Option<&'a [u8]>,
    /// How long a store may take that has the whole body.
    pub(crate) patience: Duration,
}

/// Headers by their names.
///
/// # Errors
/// A value that no header can have.
pub(crate) fn map_of<'a>(
    headers: impl Iterator<Item = (&'a str, &'a String)>,
) -> io::Result<HeaderMap> {
    let wrong = |error: String| io::Error::new(io::ErrorKind::InvalidInput, error);
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        let name: HeaderName = name.parse().map_err(|_| wrong(format!("no header: {name}")))?;
        map.insert(name, value.parse().map_err(|_| wrong(format!("no header: {value}")))?);
    }
    Ok(map)
}

/// What an answer that is none means.
fn refused(response: Response<Body>) -> Failed {
    let (parts, body) = response.into_parts();
    let mut bytes = Vec::new();
    // What of it comes will do.
    let _ = body.into_reader().take(WRONG_BYTES_MAX).read_to_end(&mut bytes);
    let (status, code) = (parts.status, Wrong::of(&bytes).code);
    let kind = match status {
        StatusCode::NOT_FOUND if code == "NoSuchBucket" => io::ErrorKind::Other,
        StatusCode::NOT_FOUND => io::ErrorKind::NotFound,
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => io::ErrorKind::PermissionDenied,
        StatusCode::NOT_IMPLEMENTED => io::ErrorKind::Unsupported,
        StatusCode::PRECONDITION_FAILED | StatusCode::RANGE_NOT_SATISFIABLE => {
            io::ErrorKind::StaleNetworkFileHandle
        }
        _ => io::ErrorKind::Other,
    };
    let mut text = format!("the store says {}", status.as_u16());
    if !code.is_empty() {
        text = format!("{text} {code}");
    }
    let region = parts.headers.get("x-amz-bucket-region").and_then(|value| value.to_str().ok());
    if let Some(region) = region.filter(|_| status.is_redirection()) {
        text = format!("{text}: the bucket is in the region {region}, set AWS_REGION to it");
    }
    let error = io::Error::new(kind, text);
    match status {
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => Failed::ForNow(error),
        // Somebody else wrote at the same moment.
        StatusCode::CONFLICT if code == "ConditionalRequestConflict" => Failed::ForNow(error),
        StatusCode::NOT_IMPLEMENTED => Failed::ForGood(error),
        status if status.is_server_error() => Failed::ForNow(error),
        _ => Failed::ForGood(error),
    }
}

/// Those of a file, or of the system, or those that are built in.
fn certificates(named: Option<&Path>) -> io::Result<RootCerts> {
    let text = match named {
        Some(path) => Some(files::read(path).map_err(|error| {
            let text = format!("can not read the certificates in {}: {error}", path.display());
            io::Error::new(error.kind(), text)
        })?),
        None => CERTIFICATES.iter().find_map(|path| files::read(Path::new(path)).ok()),
    };
    let Some(text) = text else { return Ok(RootCerts::WebPki) };
    let all = ureq::tls::parse_pem(&text).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    });
    Ok(all.collect::<Vec<_>>().into())
}

/// Wakes a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for what is done by this thread, or by another that does the same.
pub(crate) fn wait<T>(work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = std::task::Context::from_waker(&waker);
    loop {
        match work.as_mut().poll(&mut context) {
            Poll::Ready(done) => return done,
            Poll::Pending => std::thread::park(),
        }
    }
}
