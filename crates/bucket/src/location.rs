//! Location of a bucket: from its name, the environment, and the AWS configuration.

use backing::tree::BUCKET_SCHEME;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

/// Default region.
const REGION: &str = "us-east-1";
/// Characters that are not escaped in a key.
const UNESCAPED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'/');
/// Characters that are not escaped in a query value.
const UNESCAPED_IN_QUERY: &AsciiSet = &UNESCAPED.add(b'/');

/// A bucket, and a prefix of keys in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct BucketLocation {
    /// Name of the bucket.
    bucket: String,
    /// Prefix of all URLs, without a slash at the end.
    pub(crate) base: String,
    /// Prefix of the keys, empty or with a slash at the end.
    pub(crate) prefix: String,
    /// Region for which requests are signed.
    pub(crate) region: String,
    /// Requests are not signed.
    pub(crate) is_public: bool,
    /// File of root certificates for the store.
    pub(crate) certificates: Option<PathBuf>,
}

impl BucketLocation {
    /// Parses `s3://BUCKET[/PREFIX]`; `variable` returns variables of the environment.
    ///
    /// # Errors
    /// The name or a setting is invalid.
    pub(crate) fn of(
        text: &str,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> io::Result<BucketLocation> {
        let wrong = |what| io::Error::new(io::ErrorKind::InvalidInput, what);
        let rest = text
            .strip_prefix(BUCKET_SCHEME)
            .ok_or_else(|| wrong("it does not begin with s3://"))?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        if bucket.is_empty() || !bucket.bytes().all(is_letter) {
            return Err(wrong("a bucket is named s3://BUCKET or s3://BUCKET/PREFIX"));
        }
        let prefix = prefix.trim_matches('/');
        if prefix.split('/').any(|name| matches!(name, "." | "..")) {
            return Err(wrong("the prefix has a part that is no name of a file"));
        }
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let profile = Profile::read(&set);
        let region = set("AWS_REGION").or_else(|| set("AWS_DEFAULT_REGION"));
        let region = region.or_else(|| profile.value("region")).unwrap_or(REGION.to_owned());
        let endpoint = set("AWS_ENDPOINT_URL_S3").or_else(|| set("AWS_ENDPOINT_URL"));
        let endpoint = endpoint.or_else(|| profile.value("endpoint_url"));
        let base = match endpoint {
            Some(endpoint)
                if endpoint.starts_with("http://") || endpoint.starts_with("https://") =>
            {
                format!("{}/{bucket}", endpoint.trim_end_matches('/'))
            }
            Some(_) => return Err(wrong("the endpoint is no URL that begins with http")),
            None => aws(bucket, &region),
        };
        let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        let is_public = set("AWS_SKIP_SIGNATURE").is_some_and(|word| word == "true" || word == "1");
        let certificates = set("AWS_CA_BUNDLE").or_else(|| set("SSL_CERT_FILE")).map(PathBuf::from);
        Ok(BucketLocation {
            bucket: bucket.to_owned(),
            base,
            prefix,
            region,
            is_public,
            certificates,
        })
    }

    /// URL of an object.
    pub(crate) fn url(&self, key: &str) -> String {
        format!("{}/{}", self.base, utf8_percent_encode(key, UNESCAPED))
    }

    /// Header value that names an object as the source of a copy.
    pub(crate) fn source(&self, key: &str) -> String {
        format!("/{}/{}", self.bucket, utf8_percent_encode(key, UNESCAPED))
    }

    /// URL of the bucket with a query.
    pub(crate) fn query(&self, parts: &[(&str, &str)]) -> String {
        let parts: Vec<String> = parts
            .iter()
            .map(|(name, value)| {
                format!("{name}={}", utf8_percent_encode(value, UNESCAPED_IN_QUERY))
            })
            .collect();
        format!("{}/?{}", self.base, parts.join("&"))
    }
}

/// Escapes a query value.
pub(crate) fn in_query(text: &str) -> String {
    utf8_percent_encode(text, UNESCAPED_IN_QUERY).to_string()
}

/// Base URL at AWS. A bucket name with dots goes into the path, because no certificate matches it
/// as a host name.
fn aws(bucket: &str, region: &str) -> String {
    let domain = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
    match bucket.contains('.') {
        true => format!("https://s3.{region}.{domain}/{bucket}"),
        false => format!("https://{bucket}.s3.{region}.{domain}"),
    }
}

/// A section of `~/.aws/config`. Credentials are read elsewhere.
struct Profile(BTreeMap<String, String>);

impl Profile {
    fn read(set: &dyn Fn(&str) -> Option<String>) -> Profile {
        let path = set("AWS_CONFIG_FILE").map(PathBuf::from);
        let path = path.or_else(|| Some(PathBuf::from(set("HOME")?).join(".aws/config")));
        // Errors of this file are reported when credentials are read.
        let text = path.and_then(|path| crate::files::read(&path).ok()).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        Profile::of(&text, &set("AWS_PROFILE").unwrap_or("default".to_owned()))
    }

    fn of(text: &str, profile: &str) -> Profile {
        let (mut values, mut is_it) = (BTreeMap::new(), false);
        for line in text.lines() {
            if let Some(name) = line.trim().strip_prefix('[').and_then(|it| it.strip_suffix(']')) {
                let name = name.trim();
                let short = name.strip_prefix("profile ").map(str::trim);
                is_it = short == Some(profile) || name == profile && profile == "default";
            } else if let Some((name, value)) = line.split_once('=').filter(|_| is_it) {
                values.insert(name.trim().to_owned(), value.trim().to_owned());
            }
        }
        Profile(values)
    }

    fn value(&self, name: &str) -> Option<String> {
        self.0.get(name).filter(|value| !value.is_empty()).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location(text: &str, variables: &[(&str, &str)]) -> io::Result<BucketLocation> {
        let own = |name: &str| {
            let mut all = variables.iter();
            all.find(|(it, _)| *it == name).map(|(_, value)| (*value).to_owned())
        };
        BucketLocation::of(text, &own)
    }

    #[test]
    fn a_bucket_is_located_by_its_name_and_the_environment() {
        let base = |text, variables: &[_]| location(text, variables).expect("right").base;
        assert_eq!(base("s3://data/in", &[]), "https://data.s3.us-east-1.amazonaws.com");
        let east = [("AWS_DEFAULT_REGION", "cn-north-1")];
        assert_eq!(base("s3://data", &east), "https://data.s3.cn-north-1.amazonaws.com.cn");
        assert_eq!(base("s3://a.b", &[]), "https://s3.us-east-1.amazonaws.com/a.b");
        let own = [("AWS_ENDPOINT_URL", "http://store:9000/"), ("AWS_REGION", "")];
        assert_eq!(base("s3://a.b", &own), "http://store:9000/a.b");
        let location = location("s3://data//in/put//", &own).expect("right");
        assert_eq!((&*location.prefix, &*location.region), ("in/put/", REGION));
        let url = location.url("in/put/a b+c/\u{fc}%");
        assert_eq!(url, "http://store:9000/data/in/put/a%20b%2Bc/%C3%BC%25");
        let query = location.query(&[("prefix", "in/put/"), ("delimiter", "/")]);
        assert_eq!(query, "http://store:9000/data/?prefix=in%2Fput%2F&delimiter=%2F");
    }

    #[test]
    fn an_invalid_bucket_is_reported() {
        for text in ["s3://", "s3:///x", "s3://a b", "s3://a?b/c", "s3://a/../b", "/a"] {
            assert!(location(text, &[]).is_err(), "{text}");
        }
        assert!(location("s3://a", &[("AWS_ENDPOINT_URL", "store:9000")]).is_err());
    }

    #[test]
    fn a_profile_has_its_own_section() {
        let text = "[default]\nregion = one\n[profile other]\nendpoint_url=http://it\n  \
                    region=two \n[profile third]\nregion=";
        let value = |profile, name| Profile::of(text, profile).value(name);
        assert_eq!(value("default", "region").as_deref(), Some("one"));
        assert_eq!(value("other", "region").as_deref(), Some("two"));
        assert_eq!(value("other", "endpoint_url").as_deref(), Some("http://it"));
        assert_eq!((value("third", "region"), value("none", "region")), (None, None));
    }
}
