//! An S3 store for tests: the crate s3s provides the protocol, signatures included; objects are in
//! memory. Faults can be injected.
#![allow(dead_code, reason = "each test uses its part")]

use futures_util::StreamExt as _;
use http_body_util::BodyExt as _;
use s3s::auth::SimpleAuth;
use s3s::dto::*;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{Body, S3, S3Request, S3Response, S3Result, s3_error};
use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

/// The only bucket.
pub(crate) const BUCKET: &str = "data";
const KEY: &str = "AKIDTEST";
const SECRET: &str = "a secret/that+needs encoding";

/// A fault that a request gets instead of its answer.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// This status; the request is not executed.
    Status(u16),
    /// This many bytes of the answer, then the connection closes.
    Cut(usize),
    /// No answer for this time.
    Silence(Duration),
    /// Another object replaces the requested one first.
    Replace(Vec<u8>),
    /// The request is executed, but gets no answer.
    Unheard,
    /// A byte of the body changes on its way.
    Flip,
    /// The store keeps other bytes than it received.
    Keep(Damage),
}

/// How a store damages what it keeps, after it compared the checksums.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Damage {
    /// A byte in the middle differs.
    Flipped,
    /// The last byte is missing.
    Cut,
}

impl Damage {
    fn damage(self, bytes: &mut Vec<u8>) {
        match self {
            Damage::Flipped => {
                let middle = bytes.len() / 2;
                bytes[middle] ^= 4;
            }
            Damage::Cut => drop(bytes.pop()),
        }
    }
}

/// Support of a store for CRC-32C checksums.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Checksums {
    #[default]
    Kept,
    /// Does not look at them.
    Ignored,
    /// Refuses requests with them.
    Refused,
}

/// Support of a store for `If-Match` and `If-None-Match` on writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Conditions {
    #[default]
    Known,
    /// Refuses them as not implemented.
    Refused,
}

#[derive(Clone, Default)]
struct Object {
    bytes: Arc<Vec<u8>>,
    /// Number of zeros after `bytes`: a large object takes no memory.
    zeros: u64,
    metadata: Vec<(String, String)>,
    number: u64,
}

impl Object {
    fn etag(&self) -> ETag {
        ETag::Strong(format!("{:x}-{}", self.number, self.size()))
    }

    fn size(&self) -> u64 {
        self.bytes.len() as u64 + self.zeros
    }

    fn metadata(&self) -> Metadata {
        self.metadata.iter().cloned().collect()
    }

    fn stored(&self) -> Timestamp {
        (SystemTime::UNIX_EPOCH + Duration::from_secs(1_600_000_000 + self.number)).into()
    }
}

/// A multipart upload: key, metadata, parts by number, and whether those have checksums.
#[derive(Clone)]
struct Begun {
    key: String,
    metadata: Vec<(String, String)>,
    parts: BTreeMap<i32, Part>,
    has_checksums: bool,
}
/// Bytes, and the number of zeros after them.
type Part = (Vec<u8>, u64);

/// The CRC-32C of bytes as it is in headers.
fn crc_of(bytes: &[u8]) -> String {
    let crc32c = Some(Default::default());
    let mut hasher = s3s::checksum::ChecksumHasher { crc32c, ..Default::default() };
    hasher.update(bytes);
    hasher.finalize().checksum_crc32c.expect("computed")
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Object>,
    number: u64,
    uploads: BTreeMap<String, Begun>,
    conditions: Conditions,
    checksums: Checksums,
    /// The bucket does not exist.
    is_gone: bool,
    /// Faults of requests whose method, path and query contain these words.
    faults: VecDeque<(String, Fault)>,
    /// Method and path of all requests, in order.
    requests: Vec<String>,
}

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<State>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, bucket: &str, key: &str) -> S3Result<Object> {
        let state = self.lock();
        if bucket != BUCKET || state.is_gone {
            return Err(s3_error!(NoSuchBucket));
        }
        state.objects.get(key).cloned().ok_or_else(|| s3_error!(NoSuchKey))
    }
}

impl Shared {
    /// The source object of a copy.
    fn source(&self, source: &CopySource, expected: Option<&ETagCondition>) -> S3Result<Object> {
        let CopySource::Bucket { bucket, key, .. } = source else {
            return Err(s3_error!(InvalidArgument));
        };
        let object = self.get(bucket, key)?;
        match expected {
            Some(ETagCondition::ETag(expected)) if *expected != object.etag() => {
                Err(s3_error!(PreconditionFailed))
            }
            _ => Ok(object),
        }
    }
}

fn etag_of(number: i32, part: &Part) -> ETag {
    ETag::Strong(format!("part{number}-{}-{}", part.0.len(), part.1))
}

impl State {
    fn put(&mut self, key: &str, bytes: Vec<u8>, metadata: Vec<(String, String)>) -> ETag {
        self.put_sparse(key, (bytes, 0), metadata)
    }

    fn put_sparse(
        &mut self,
        key: &str,
        (bytes, zeros): Part,
        metadata: Vec<(String, String)>,
    ) -> ETag {
        self.number += 1;
        let object = Object { bytes: Arc::new(bytes), zeros, metadata, number: self.number };
        let etag = object.etag();
        self.objects.insert(key.to_owned(), object);
        etag
    }

    /// Compares a checksum with what arrived, and damages that if the request says so. Returns the
    /// checksum to answer.
    fn receive(
        &self,
        bytes: &mut Vec<u8>,
        sent: Option<String>,
        damage: Option<&Damage>,
    ) -> S3Result<Option<String>> {
        let is_sent = sent.is_some();
        if is_sent && self.checksums == Checksums::Refused {
            return Err(s3_error!(InvalidArgument));
        }
        let is_compared = is_sent && self.checksums == Checksums::Kept;
        if is_compared && sent != Some(crc_of(bytes)) {
            return Err(s3_error!(BadDigest));
        }
        if let Some(damage) = damage {
            damage.damage(bytes);
        }
        Ok(is_compared.then(|| crc_of(bytes)))
    }

    /// Checks whether an object may be written there.
    fn check(
        &self,
        bucket: &str,
        key: &str,
        (is, is_not): (Option<&ETagCondition>, Option<&ETagCondition>),
    ) -> S3Result<()> {
        if bucket != BUCKET || self.is_gone {
            return Err(s3_error!(NoSuchBucket));
        }
        if is.is_none() && is_not.is_none() {
            return Ok(());
        }
        if self.conditions == Conditions::Refused {
            return Err(s3_error!(NotImplemented));
        }
        let there = self.objects.get(key).map(Object::etag);
        let may = match (is, is_not, there) {
            (Some(ETagCondition::ETag(expected)), _, Some(there)) => *expected == there,
            (None, Some(ETagCondition::Any), there) => there.is_none(),
            _ => false,
        };
        if may { Ok(()) } else { Err(s3_error!(PreconditionFailed)) }
    }
}

fn listed(metadata: Option<Metadata>) -> Vec<(String, String)> {
    metadata.into_iter().flatten().collect()
}

async fn whole(body: Option<StreamingBlob>) -> S3Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let Some(mut body) = body else { return Ok(bytes) };
    while let Some(part) = body.next().await {
        // The library compares the SHA-256 that is signed.
        bytes.extend_from_slice(&part.map_err(|_| s3_error!(BadDigest))?);
    }
    Ok(bytes)
}

/// A store that runs until it is dropped.
pub(crate) struct Store {
    state: Shared,
    pub(crate) endpoint: String,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Store {
    pub(crate) fn start() -> Store {
        let state = Shared::default();
        let (to, port) = std::sync::mpsc::channel();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let served = state.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
                to.send(listener.local_addr().expect("bound").port()).expect("the receiver exists");
                tokio::select! {
                    () = serve(listener, served) => {}
                    _ = stopped => {}
                }
            });
        });
        let endpoint = format!("http://127.0.0.1:{}", port.recv().expect("it runs"));
        Store { state, endpoint, stop: Some(stop), thread: Some(thread) }
    }

    /// Environment variables by which a process reaches the store; no settings of this process leak
    /// in.
    pub(crate) fn variables(&self) -> Vec<(&'static str, String)> {
        vec![
            ("AWS_ENDPOINT_URL", self.endpoint.clone()),
            ("AWS_ACCESS_KEY_ID", KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET.to_owned()),
            ("AWS_EC2_METADATA_DISABLED", "true".to_owned()),
        ]
    }

    /// The same as a profile of `~/.aws`: its two files.
    pub(crate) fn profile(&self) -> [(&'static str, String); 2] {
        let (key, secret) = (KEY, SECRET);
        let credentials = format!("aws_access_key_id = {key}\naws_secret_access_key = {secret}\n");
        let config = format!("[profile site]\nendpoint_url = {}\n", self.endpoint);
        [("credentials", format!("[site]\n{credentials}")), ("config", config)]
    }

    pub(crate) fn put(&self, key: &str, bytes: &[u8], metadata: &[(&str, &str)]) {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let metadata = metadata.iter().map(owned).collect();
        self.state.lock().put(key, bytes.to_vec(), metadata);
    }

    /// Puts an object of these bytes followed by `zeros` zeros.
    pub(crate) fn put_large(&self, key: &str, bytes: &[u8], zeros: u64) {
        self.state.lock().put_sparse(key, (bytes.to_vec(), zeros), Vec::new());
    }

    /// Size of an object in bytes.
    pub(crate) fn size(&self, key: &str) -> Option<u64> {
        self.state.lock().objects.get(key).map(Object::size)
    }

    /// Bytes and metadata of an object.
    pub(crate) fn get(&self, key: &str) -> Option<(Vec<u8>, BTreeMap<String, String>)> {
        let object = self.state.lock().objects.get(key).cloned()?;
        Some((object.bytes.to_vec(), object.metadata.into_iter().collect()))
    }

    pub(crate) fn keys(&self) -> Vec<String> {
        self.state.lock().objects.keys().cloned().collect()
    }

    /// Number of open multipart uploads.
    pub(crate) fn uploads(&self) -> usize {
        self.state.lock().uploads.len()
    }

    pub(crate) fn set_conditions(&self, conditions: Conditions) {
        self.state.lock().conditions = conditions;
    }

    pub(crate) fn set_checksums(&self, checksums: Checksums) {
        self.state.lock().checksums = checksums;
    }

    /// Takes the bucket away, or brings it back.
    pub(crate) fn set_gone(&self, is_gone: bool) {
        self.state.lock().is_gone = is_gone;
    }

    /// Removes all pending faults.
    pub(crate) fn clear_faults(&self) {
        self.state.lock().faults.clear();
    }

    pub(crate) fn remove(&self, key: &str) {
        assert!(self.state.lock().objects.remove(key).is_some(), "{key}");
    }

    /// The next request whose method, path and query contain these words gets this fault.
    pub(crate) fn fault(&self, words: &str, fault: Fault) {
        self.state.lock().faults.push_back((words.to_owned(), fault));
    }

    /// Number of requests since the last call that contain these words.
    pub(crate) fn requests(&self, words: &str) -> usize {
        let requests = core::mem::take(&mut self.state.lock().requests);
        requests.iter().filter(|line| has(line, words)).count()
    }

    /// Number of faults that no request has met.
    pub(crate) fn faults_left(&self) -> usize {
        self.state.lock().faults.len()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn has(line: &str, words: &str) -> bool {
    words.split(' ').all(|word| line.contains(word))
}

async fn serve(listener: tokio::net::TcpListener, state: Shared) {
    let mut builder = S3ServiceBuilder::new(state.clone());
    builder.set_auth(SimpleAuth::from_single(KEY, SECRET));
    let service = builder.build();
    while let Ok((stream, _)) = listener.accept().await {
        let (state, service) = (state.clone(), service.clone());
        tokio::spawn(async move {
            let answer = hyper::service::service_fn(move |request| {
                let (state, service) = (state.clone(), service.clone());
                async move { Ok::<_, Infallible>(answer(&state, &service, request).await) }
            });
            let io = hyper_util::rt::TokioIo::new(stream);
            // A connection that was cut ends with an error.
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(io, answer).await;
        });
    }
}

type Request = hyper::Request<hyper::body::Incoming>;

/// A request whose body differs in a byte.
async fn flipped(request: Request) -> hyper::Request<Body> {
    let (parts, body) = request.into_parts();
    let mut bytes = body.collect().await.expect("a body").to_bytes().to_vec();
    Damage::Flipped.damage(&mut bytes);
    hyper::Request::from_parts(parts, Body::from(bytes))
}

async fn answer(state: &Shared, service: &S3Service, request: Request) -> hyper::Response<Body> {
    let line = format!("{} {}", request.method(), request.uri());
    let fault = {
        let mut state = state.lock();
        let dir = state.faults.iter().position(|(words, _)| has(&line, words));
        state.requests.push(line);
        dir.and_then(|dir| state.faults.remove(dir))
    };
    let key = request.uri().path().trim_start_matches('/').to_owned();
    let (mut cut, mut is_unheard, mut is_flipped, mut damage) = (None, false, false, None);
    match fault.map(|(_, fault)| fault) {
        Some(Fault::Status(status)) => {
            let mut response = hyper::Response::new(Body::empty());
            *response.status_mut() = status.try_into().expect("a status");
            return response;
        }
        Some(Fault::Silence(time)) => tokio::time::sleep(time).await,
        Some(Fault::Replace(bytes)) => {
            let key = key.strip_prefix(&format!("{BUCKET}/")).expect("a key");
            state.lock().put(key, bytes, Vec::new());
        }
        Some(Fault::Cut(bytes)) => cut = Some(bytes),
        Some(Fault::Unheard) => is_unheard = true,
        Some(Fault::Flip) => is_flipped = true,
        Some(Fault::Keep(how)) => damage = Some(how),
        None => {}
    }
    let mut request = match is_flipped {
        true => flipped(request).await,
        false => request.map(Body::from),
    };
    if let Some(damage) = damage {
        request.extensions_mut().insert(damage);
    }
    let Ok(response) = service.call(request).await else {
        let mut response = hyper::Response::new(Body::empty());
        *response.status_mut() = hyper::StatusCode::INTERNAL_SERVER_ERROR;
        return response;
    };
    if is_unheard {
        let mut response = hyper::Response::new(Body::empty());
        *response.status_mut() = hyper::StatusCode::SERVICE_UNAVAILABLE;
        return response;
    }
    let Some(left) = cut else { return response };
    response.map(|mut body| {
        let bytes = body.take_bytes().unwrap_or_default();
        let sent = bytes.slice(..left.min(bytes.len()));
        let cut = || Err(std::io::Error::other("cut"));
        let parts = [Ok(hyper::body::Frame::data(sent)), cut()];
        Body::http_body_unsync(http_body_util::StreamBody::new(futures_util::stream::iter(parts)))
    })
}

#[async_trait::async_trait]
impl S3 for Shared {
    async fn list_objects_v2(
        &self,
        request: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        let input = request.input;
        if input.bucket != BUCKET || self.lock().is_gone {
            return Err(s3_error!(NoSuchBucket));
        }
        let prefix = input.prefix.clone().unwrap_or_default();
        let most = usize::try_from(input.max_keys.unwrap_or(1000)).expect("few").min(1000);
        let is_url = input.encoding_type.as_ref().is_some_and(|it| it.as_str() == "url");
        let encode = |key: &str| match is_url {
            true => encoded(key),
            false => key.to_owned(),
        };
        let (mut contents, mut prefixes) = (Vec::new(), Vec::new());
        let (mut last, mut next) = (String::new(), None);
        for (key, object) in &self.lock().objects {
            let Some(rest) = key.strip_prefix(&prefix) else { continue };
            let is_before = input.continuation_token.as_ref().is_some_and(|token| {
                key <= token || (token.ends_with('/') && key.starts_with(token))
            });
            let rolled = rest.find('/').filter(|_| input.delimiter.is_some());
            let seen = rolled.map_or(key.clone(), |end| format!("{prefix}{}", &rest[..=end]));
            if is_before || seen == last {
                continue;
            }
            if contents.len() + prefixes.len() == most {
                next = Some(last);
                break;
            }
            match rolled {
                Some(_) => prefixes.push(CommonPrefix { prefix: Some(encode(&seen)) }),
                None => contents.push(s3s::dto::Object {
                    key: Some(encode(key)),
                    size: Some(object.size() as i64),
                    e_tag: Some(object.etag()),
                    last_modified: Some(object.stored()),
                    ..Default::default()
                }),
            }
            last = seen;
        }
        Ok(S3Response::new(ListObjectsV2Output {
            contents: Some(contents),
            common_prefixes: Some(prefixes),
            is_truncated: Some(next.is_some()),
            next_continuation_token: next,
            encoding_type: input.encoding_type,
            ..Default::default()
        }))
    }

    async fn head_object(
        &self,
        request: S3Request<HeadObjectInput>,
    ) -> S3Result<S3Response<HeadObjectOutput>> {
        let object = self.get(&request.input.bucket, &request.input.key)?;
        Ok(S3Response::new(HeadObjectOutput {
            content_length: Some(object.size() as i64),
            e_tag: Some(object.etag()),
            last_modified: Some(object.stored()),
            metadata: Some(object.metadata()),
            ..Default::default()
        }))
    }

    async fn get_object(
        &self,
        request: S3Request<GetObjectInput>,
    ) -> S3Result<S3Response<GetObjectOutput>> {
        let input = request.input;
        let object = self.get(&input.bucket, &input.key)?;
        let size = object.bytes.len() as u64;
        if let Some(ETagCondition::ETag(expected)) = &input.if_match
            && *expected != object.etag()
        {
            return Err(s3_error!(PreconditionFailed));
        }
        let (etag, stored, metadata) = (object.etag(), object.stored(), object.metadata());
        let (bytes, content_range) = match input.range {
            Some(range) => {
                let range = range.check(size)?;
                let printed = format!("bytes {}-{}/{size}", range.start, range.end - 1);
                (object.bytes[range.start as usize..range.end as usize].to_vec(), Some(printed))
            }
            None => (object.bytes.to_vec(), None),
        };
        Ok(S3Response::new(GetObjectOutput {
            content_length: Some(bytes.len() as i64),
            body: Some(Body::from(bytes).into()),
            content_range,
            e_tag: Some(etag),
            last_modified: Some(stored),
            metadata: Some(metadata),
            ..Default::default()
        }))
    }

    async fn put_object(
        &self,
        request: S3Request<PutObjectInput>,
    ) -> S3Result<S3Response<PutObjectOutput>> {
        let input = request.input;
        let mut bytes = whole(input.body).await?;
        let mut state = self.lock();
        let conditions = (input.if_match.as_ref(), input.if_none_match.as_ref());
        state.check(&input.bucket, &input.key, conditions)?;
        let damage = request.extensions.get::<Damage>();
        let checksum_crc32c = state.receive(&mut bytes, input.checksum_crc32c, damage)?;
        let etag = Some(state.put(&input.key, bytes, listed(input.metadata)));
        Ok(S3Response::new(PutObjectOutput { e_tag: etag, checksum_crc32c, ..Default::default() }))
    }

    async fn copy_object(
        &self,
        request: S3Request<CopyObjectInput>,
    ) -> S3Result<S3Response<CopyObjectOutput>> {
        let input = request.input;
        let object = self.source(&input.copy_source, input.copy_source_if_match.as_ref())?;
        // The library does not parse these headers here.
        let of = |name: &str| {
            let value = request.headers.get(name).and_then(|value| value.to_str().ok());
            value.map(|value| value.parse::<ETagCondition>().expect("a condition"))
        };
        let conditions = (of("if-match"), of("if-none-match"));
        self.lock().check(
            &input.bucket,
            &input.key,
            (conditions.0.as_ref(), conditions.1.as_ref()),
        )?;
        let replaces = input.metadata_directive.as_ref().is_some_and(|it| it.as_str() == "REPLACE");
        let metadata = if replaces { listed(input.metadata) } else { object.metadata.clone() };
        // Like stores that encrypt, or that assemble a copy differently: another ETag.
        let bytes = (object.bytes.to_vec(), object.zeros);
        let etag = self.lock().put_sparse(&input.key, bytes, metadata);
        let copied = CopyObjectResult { e_tag: Some(etag), ..Default::default() };
        Ok(S3Response::new(CopyObjectOutput {
            copy_object_result: Some(copied),
            ..Default::default()
        }))
    }

    async fn delete_object(
        &self,
        request: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        let mut state = self.lock();
        state.check(&request.input.bucket, &request.input.key, (None, None))?;
        state.objects.remove(&request.input.key);
        Ok(S3Response::new(DeleteObjectOutput::default()))
    }

    async fn create_multipart_upload(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        let input = request.input;
        let mut state = self.lock();
        state.check(&input.bucket, &input.key, (None, None))?;
        let has_checksums = input.checksum_algorithm.is_some();
        if has_checksums && state.checksums == Checksums::Refused {
            return Err(s3_error!(NotImplemented));
        }
        state.number += 1;
        let id = format!("upload/{}+=", state.number);
        let (key, metadata) = (input.key, listed(input.metadata));
        let upload = Begun { key, metadata, parts: BTreeMap::new(), has_checksums };
        state.uploads.insert(id.clone(), upload);
        Ok(S3Response::new(CreateMultipartUploadOutput {
            upload_id: Some(id),
            ..Default::default()
        }))
    }

    async fn upload_part(
        &self,
        request: S3Request<UploadPartInput>,
    ) -> S3Result<S3Response<UploadPartOutput>> {
        let input = request.input;
        let mut bytes = whole(input.body).await?;
        let mut state = self.lock();
        let damage = request.extensions.get::<Damage>();
        let is_sent = input.checksum_crc32c.is_some();
        let checksum_crc32c = state.receive(&mut bytes, input.checksum_crc32c, damage)?;
        let upload = state.uploads.get_mut(&input.upload_id);
        let upload = upload.ok_or_else(|| s3_error!(NoSuchUpload))?;
        if is_sent && !upload.has_checksums {
            return Err(s3_error!(InvalidRequest));
        }
        let part = (bytes, 0);
        let etag = Some(etag_of(input.part_number, &part));
        upload.parts.insert(input.part_number, part);
        Ok(S3Response::new(UploadPartOutput { e_tag: etag, checksum_crc32c, ..Default::default() }))
    }

    async fn upload_part_copy(
        &self,
        request: S3Request<UploadPartCopyInput>,
    ) -> S3Result<S3Response<UploadPartCopyOutput>> {
        let input = request.input;
        let object = self.source(&input.copy_source, input.copy_source_if_match.as_ref())?;
        let range = input.copy_source_range.unwrap_or_default();
        let ends = range.strip_prefix("bytes=").and_then(|range| range.split_once('-'));
        let (start, last) = ends.ok_or_else(|| s3_error!(InvalidArgument))?;
        let number = |text: &str| text.parse::<u64>().map_err(|_| s3_error!(InvalidArgument));
        let (start, end) = (number(start)?, number(last)? + 1);
        if end > object.size() || end - start > 5 << 30 {
            return Err(s3_error!(InvalidRange));
        }
        let have = object.bytes.len() as u64;
        let bytes = object.bytes[start.min(have) as usize..end.min(have) as usize].to_vec();
        let zeros = end - start - bytes.len() as u64;
        let part = (bytes, zeros);
        let etag = etag_of(input.part_number, &part);
        let mut state = self.lock();
        let upload = state.uploads.get_mut(&input.upload_id);
        let upload = upload.ok_or_else(|| s3_error!(NoSuchUpload))?;
        upload.parts.insert(input.part_number, part);
        let copied = CopyPartResult { e_tag: Some(etag), ..Default::default() };
        Ok(S3Response::new(UploadPartCopyOutput {
            copy_part_result: Some(copied),
            ..Default::default()
        }))
    }

    async fn complete_multipart_upload(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        let input = request.input;
        let mut state = self.lock();
        let conditions = (input.if_match.as_ref(), input.if_none_match.as_ref());
        state.check(&input.bucket, &input.key, conditions)?;
        let upload = state.uploads.get(&input.upload_id).cloned();
        let Begun { key, metadata, parts, has_checksums } =
            upload.ok_or_else(|| s3_error!(NoSuchUpload))?;
        let is_compared = has_checksums && state.checksums == Checksums::Kept;
        let all = input.multipart_upload.and_then(|it| it.parts).unwrap_or_default();
        let (mut bytes, mut zeros) = (Vec::new(), 0);
        for (index, named) in all.iter().enumerate() {
            let number = named.part_number.expect("a number");
            let part = parts.get(&number).ok_or_else(|| s3_error!(InvalidPart))?;
            if named.e_tag.as_ref() != Some(&etag_of(number, part)) {
                return Err(s3_error!(InvalidPart));
            }
            if is_compared && named.checksum_crc32c != Some(crc_of(&part.0)) {
                return Err(s3_error!(InvalidPart));
            }
            if index + 1 < all.len() && part.0.len() as u64 + part.1 < 5 << 20 {
                return Err(s3_error!(EntityTooSmall));
            }
            assert!(zeros == 0 || part.0.is_empty(), "zeros follow all bytes");
            bytes.extend_from_slice(&part.0);
            zeros += part.1;
        }
        if let Some(damage) = request.extensions.get::<Damage>() {
            damage.damage(&mut bytes);
        }
        let etag = state.put_sparse(&key, (bytes, zeros), metadata);
        state.uploads.remove(&input.upload_id);
        Ok(S3Response::new(CompleteMultipartUploadOutput {
            e_tag: Some(etag),
            ..Default::default()
        }))
    }

    async fn abort_multipart_upload(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        let removed = self.lock().uploads.remove(&request.input.upload_id);
        removed.ok_or_else(|| s3_error!(NoSuchUpload))?;
        Ok(S3Response::new(AbortMultipartUploadOutput::default()))
    }
}

/// Encodes a key the way stores do in a listing.
fn encoded(key: &str) -> String {
    let one = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'*' | b'/' => {
            char::from(byte).to_string()
        }
        b' ' => "+".to_owned(),
        byte => format!("%{byte:02X}"),
    };
    key.bytes().map(one).collect()
}
