//! Requests to a store: signing, sending, and retrying while the store reports that it is busy or
//! does not respond. `credentials` finds the credentials to sign with.

use crate::location::BucketLocation;
use crate::responses::ErrorResponse;
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

/// How long a request is retried without receiving any further byte. Shorter than the timeout of
/// the callers.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);
/// The same for the very first request, for which the start of an instance waits.
pub(crate) const FIRST_TIMEOUT: Duration = Duration::from_secs(5);
/// First pause between two attempts; each further pause is twice as long,
const PAUSE: Duration = Duration::from_millis(50);
/// up to this one.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Timeout of connecting to a store,
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// of its response,
const ANSWER_TIME: Duration = Duration::from_secs(8);
/// and of each read of the body.
const READ_TIME: Duration = Duration::from_secs(8);
/// Maximum size of a response that is read as a whole, in bytes: a page of a listing has about 400
/// KiB.
const WHOLE_BYTES_MAX: u64 = 16 << 20;
/// Maximum size of an error response, in bytes.
const WRONG_BYTES_MAX: u64 = 64 << 10;
/// Connections that are kept open: as many as there are concurrent requests.
const CONNECTIONS_MAX: usize = 64;
/// Where distributions store the trusted root certificates.
const CERTIFICATES: [&str; 3] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
];

/// Errors by which stores tell that the body does not have the checksum of the request.
const DIFFERENT_BODY: [&str; 3] =
    ["BadDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch"];
/// Errors by which stores tell that they do not know a header.
const UNKNOWN_HEADER: [&str; 2] = ["InvalidArgument", "InvalidRequest"];

/// Connection to a store.
pub(crate) struct Client {
    pub(crate) location: BucketLocation,
    agent: Agent,
    /// `None` for a store that accepts unsigned requests.
    signer: Option<Signer<Credential>>,
}

/// Attempts of one operation, with a deadline.
pub(crate) struct Attempts {
    began: Instant,
    timeout: Duration,
    pause: Duration,
}

impl Attempts {
    pub(crate) fn new(timeout: Duration) -> Attempts {
        Attempts { began: Instant::now(), timeout, pause: PAUSE }
    }

    /// Waits before the next attempt; false if the deadline has passed. The pause is randomized, so
    /// that requests that failed together are not repeated together.
    pub(crate) fn wait_before_retry(&mut self) -> bool {
        let passed = self.began.elapsed();
        let spread = u64::from(passed.subsec_nanos()).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let half = self.pause / 2;
        let pause = half + Duration::from_nanos(spread).min(half);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        let may = passed + pause < self.timeout;
        if may {
            std::thread::sleep(pause);
        }
        may
    }
}

/// Why a request failed.
enum RequestError {
    /// A retry may succeed.
    Transient(io::Error),
    ForGood(io::Error),
}

impl Client {
    /// Does not send anything yet.
    ///
    /// # Errors
    /// The certificates cannot be read.
    pub(crate) fn new(location: BucketLocation) -> io::Result<Client> {
        let tls = TlsConfig::builder().root_certs(certificates(location.certificates.as_deref())?);
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
        let signer = (!location.is_public).then(|| credentials::signer(&location.region));
        Ok(Client { location, agent: config.into(), signer })
    }

    /// Sends a request until it gets a response or fails for good.
    ///
    /// # Errors
    /// ENOENT: the object does not exist. EACCES: not permitted. ESTALE: the object has another
    /// version than the headers require. Otherwise the error of the store or of the connection.
    pub(crate) fn query(
        &self,
        method: &Method,
        url: &str,
        headers: &[(&'static str, String)],
        attempts: &mut Attempts,
    ) -> io::Result<Response<Body>> {
        let headers = map_of(headers.iter().map(|(name, value)| (*name, value)))?;
        let request = StoreRequest {
            method,
            url,
            headers: &headers,
            body: None,
            answer_timeout: ANSWER_TIME,
        };
        loop {
            match self.query_once(&request) {
                Ok(response) => return Ok(response),
                Err(RequestError::ForGood(error)) => return Err(error),
                Err(RequestError::Transient(error)) if !attempts.wait_before_retry() => {
                    return Err(error);
                }
                Err(RequestError::Transient(_)) => {}
            }
        }
    }

    /// As `query`, and reads the whole body.
    ///
    /// # Errors
    /// As `query`.
    pub(crate) fn query_whole(&self, url: &str, timeout: Duration) -> io::Result<Vec<u8>> {
        let (method, headers) = (&Method::GET, &HeaderMap::new());
        let request =
            StoreRequest { method, url, headers, body: None, answer_timeout: ANSWER_TIME };
        self.send(&request, timeout).map(|(_, bytes)| bytes)
    }

    /// Sends a request that changes something, and reads the whole response. The store may have
    /// executed it more than once.
    ///
    /// # Errors
    /// As `query`.
    pub(crate) fn send(
        &self,
        request: &StoreRequest<'_>,
        timeout: Duration,
    ) -> io::Result<(HeaderMap, Vec<u8>)> {
        let mut attempts = Attempts::new(timeout);
        loop {
            let error = match self.send_once(request) {
                Ok(answer) => return Ok(answer),
                Err(RequestError::ForGood(error)) => return Err(error),
                Err(RequestError::Transient(error)) => error,
            };
            if !attempts.wait_before_retry() {
                return Err(error);
            }
        }
    }

    fn send_once(&self, request: &StoreRequest<'_>) -> Result<(HeaderMap, Vec<u8>), RequestError> {
        let (parts, body) = self.query_once(request)?.into_parts();
        let mut bytes = Vec::new();
        let read = body.into_reader().take(WHOLE_BYTES_MAX).read_to_end(&mut bytes);
        read.map_err(RequestError::Transient)?;
        // A store may answer 200 before a long operation ends; an error is then in the body.
        let code = if request.method == Method::GET {
            String::new()
        } else {
            ErrorResponse::of(&bytes).code
        };
        match code.as_str() {
            "" => Ok((parts.headers, bytes)),
            "InternalError" | "SlowDown" | "ServiceUnavailable" | "RequestTimeout" => {
                Err(RequestError::Transient(io::Error::other(format!("the store says {code}"))))
            }
            _ => Err(RequestError::ForGood(io::Error::other(format!("the store says {code}")))),
        }
    }

    fn query_once(&self, request: &StoreRequest<'_>) -> Result<Response<Body>, RequestError> {
        let mut http_request = Request::builder().method(request.method).uri(request.url);
        if let Some(headers) = http_request.headers_mut() {
            headers.extend(request.headers.clone());
        }
        let wrong = |error: http::Error| RequestError::ForGood(io::Error::other(error));
        let (mut parts, ()) = http_request.body(()).map_err(wrong)?.into_parts();
        if let Some(signer) = &self.signer {
            wait(signer.sign(&mut parts, None)).map_err(|error| {
                let what = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE";
                let text = format!("no credentials for the bucket: {error}: {what}");
                RequestError::ForGood(io::Error::new(io::ErrorKind::PermissionDenied, text))
            })?;
        }
        let response = match request.body {
            None => self.agent.run(Request::from_parts(parts, ())),
            Some(body) => {
                let http_request = self.agent.configure_request(Request::from_parts(parts, body));
                self.agent
                    .run(http_request.timeout_recv_response(Some(request.answer_timeout)).build())
            }
        };
        let response = match response {
            Ok(response) => response,
            Err(error) => return Err(RequestError::Transient(io::Error::other(error))),
        };
        match response.status() {
            status if status.is_success() => Ok(response),
            _ => Err(refused(response)),
        }
    }
}

/// A request to the store.
pub(crate) struct StoreRequest<'a> {
    pub(crate) method: &'a Method,
    pub(crate) url: &'a str,
    pub(crate) headers: &'a HeaderMap,
    /// `None` for a request without a body.
    pub(crate) body: Option<&'a [u8]>,
    /// Timeout of the response once the store has the whole body.
    pub(crate) answer_timeout: Duration,
}

/// Builds a header map.
///
/// # Errors
/// A value is not valid in a header.
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

/// Turns an error response into an error.
fn refused(response: Response<Body>) -> RequestError {
    let (parts, body) = response.into_parts();
    let mut bytes = Vec::new();
    // A truncated body is good enough.
    let _ = body.into_reader().take(WRONG_BYTES_MAX).read_to_end(&mut bytes);
    let (status, code) = (parts.status, ErrorResponse::of(&bytes).code);
    let kind = match status {
        StatusCode::NOT_FOUND if code == "NoSuchBucket" => io::ErrorKind::Other,
        StatusCode::NOT_FOUND => io::ErrorKind::NotFound,
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => io::ErrorKind::PermissionDenied,
        StatusCode::NOT_IMPLEMENTED => io::ErrorKind::Unsupported,
        StatusCode::BAD_REQUEST if UNKNOWN_HEADER.contains(&code.as_str()) => {
            io::ErrorKind::InvalidInput
        }
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
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => {
            RequestError::Transient(error)
        }
        // Bytes changed on their way.
        StatusCode::BAD_REQUEST if DIFFERENT_BODY.contains(&code.as_str()) => {
            RequestError::Transient(error)
        }
        // Another client wrote at the same time.
        StatusCode::CONFLICT if code == "ConditionalRequestConflict" => {
            RequestError::Transient(error)
        }
        StatusCode::NOT_IMPLEMENTED => RequestError::ForGood(error),
        status if status.is_server_error() => RequestError::Transient(error),
        _ => RequestError::ForGood(error),
    }
}

/// Root certificates from a file, from the system, or built in.
fn certificates(named: Option<&Path>) -> io::Result<RootCerts> {
    let text = match named {
        Some(path) => Some(files::read(path).map_err(|error| {
            let text = format!("cannot read the certificates in {}: {error}", path.display());
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

/// Runs a future to completion on this thread. Another thread that does the same may drive shared
/// work.
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
