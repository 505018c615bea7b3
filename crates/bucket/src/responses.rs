//! Responses of a store: a page of a listing, the headers of an object, errors.

use crate::attributes::StoredAttributes;
use http::HeaderMap;
use percent_encoding::percent_decode_str;
use reqsign_core::time::Timestamp;
use serde::Deserialize;
use std::io;

/// Prefix of the headers that carry user metadata.
const METADATA: &str = "x-amz-meta-";

/// A page of `ListObjectsV2`.
#[derive(Deserialize, Default, Debug)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct Page {
    pub(crate) contents: Vec<ListedObject>,
    pub(crate) common_prefixes: Vec<Prefix>,
    is_truncated: bool,
    next_continuation_token: Option<String>,
    encoding_type: Option<String>,
}

/// An object in a listing.
#[derive(Deserialize, Default, Debug)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct ListedObject {
    pub(crate) key: String,
    pub(crate) size: u64,
    last_modified: String,
    e_tag: String,
}

/// A common prefix of keys, up to a slash.
#[derive(Deserialize, Default, Debug)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct Prefix {
    pub(crate) prefix: String,
}

impl Page {
    /// Decodes a page.
    ///
    /// # Errors
    /// The text is not a page.
    pub(crate) fn of(bytes: &[u8]) -> io::Result<Page> {
        let wrong = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
        let text = std::str::from_utf8(bytes).map_err(|error| wrong(error.to_string()))?;
        let mut page: Page =
            quick_xml::de::from_str(text).map_err(|error| wrong(error.to_string()))?;
        // Keys may contain characters that XML cannot represent.
        if page.encoding_type.as_deref() == Some("url") {
            let keys = page.contents.iter_mut().map(|object| &mut object.key);
            for key in keys.chain(page.common_prefixes.iter_mut().map(|it| &mut it.prefix)) {
                let spaced = key.replace('+', " ");
                let decoded = percent_decode_str(&spaced).decode_utf8();
                *key = decoded.map_err(|error| wrong(error.to_string()))?.into_owned();
            }
        }
        Ok(page)
    }

    /// The token with which to request the next page.
    pub(crate) fn next(&self) -> Option<&str> {
        self.next_continuation_token
            .as_deref()
            .filter(|token| self.is_truncated && !token.is_empty())
    }
}

/// Headers of an object.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Head {
    pub(crate) size: u64,
    /// ETag as the store sends it.
    pub(crate) etag: String,
    /// Time of the upload, in nanoseconds since 1970.
    pub(crate) stored: i64,
    pub(crate) attributes: StoredAttributes,
}

impl Head {
    pub(crate) fn of(headers: &HeaderMap) -> Head {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        Head {
            size: text("content-length").and_then(|text| text.parse().ok()).unwrap_or(0),
            etag: text("etag").unwrap_or_default().to_owned(),
            stored: nanos(text("last-modified").and_then(|it| Timestamp::parse_rfc2822(it).ok())),
            attributes: StoredAttributes::of(&|name| text(&format!("{METADATA}{name}"))),
        }
    }

    /// The fields that a listing contains.
    pub(crate) fn of_listed(object: &ListedObject) -> Head {
        let stored = nanos(object.last_modified.parse().ok());
        Head {
            size: object.size,
            etag: object.e_tag.clone(),
            stored,
            attributes: StoredAttributes::default(),
        }
    }

    /// Version number. Some stores vary the quotes around the ETag.
    pub(crate) fn number(&self) -> u64 {
        self.attributes.version.unwrap_or_else(|| number_of(&self.etag))
    }
}

/// The version number that an ETag stands for.
pub(crate) fn number_of(etag: &str) -> u64 {
    xxhash_rust::xxh3::xxh3_64(etag.trim_start_matches("W/").trim_matches('"').as_bytes())
}

fn nanos(time: Option<Timestamp>) -> i64 {
    time.map_or(0, |time| {
        let nanos = i64::from(time.subsec_nanosecond());
        time.as_second().saturating_mul(1_000_000_000).saturating_add(nanos)
    })
}

/// Response to the start of a multipart upload.
#[derive(Deserialize, Default, Debug)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct UploadStarted {
    pub(crate) upload_id: String,
}

/// Response to the copy of a part.
#[derive(Deserialize, Default, Debug)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct CopyResponse {
    #[serde(rename = "ETag")]
    pub(crate) e_tag: String,
}

/// Error response of a store.
#[derive(Deserialize, Default, Debug)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct ErrorResponse {
    pub(crate) code: String,
}

impl ErrorResponse {
    /// Decodes the fields that can be read.
    pub(crate) fn of(bytes: &[u8]) -> ErrorResponse {
        let text = std::str::from_utf8(bytes).unwrap_or_default();
        quick_xml::de::from_str(text).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_page_is_parsed() {
        let text = "<?xml version=\"1.0\"?><ListBucketResult xmlns=\"http://s3\"><Name>b</Name>\
            <IsTruncated>true</IsTruncated><EncodingType>url</EncodingType><Contents><Key>a%2Bb+c%0A\
            </Key><Size>7</Size><LastModified>2009-10-12T17:50:30.000Z</LastModified><ETag>\
            &quot;fba9&quot;</ETag><StorageClass>STANDARD</StorageClass></Contents><CommonPrefixes>\
            <Prefix>%C3%BC/</Prefix></CommonPrefixes><Contents><Key>z</Key></Contents>\
            <NextContinuationToken>next</NextContinuationToken></ListBucketResult>";
        let page = Page::of(text.as_bytes()).expect("a page");
        let keys: Vec<_> = page.contents.iter().map(|object| &*object.key).collect();
        assert_eq!(keys, ["a+b c\n", "z"]);
        assert_eq!(page.common_prefixes[0].prefix, "\u{fc}/");
        assert_eq!(page.next(), Some("next"));
        let head = Head::of_listed(&page.contents[0]);
        assert_eq!((head.size, head.stored), (7, 1_255_369_830_000_000_000));
        assert_eq!(head.number(), number_of("fba9"));
        let late = ListedObject {
            last_modified: "9999-12-30T20:00:00.5Z".into(),
            ..ListedObject::default()
        };
        assert_eq!(Head::of_listed(&late).stored, i64::MAX);
        for text in ["", "<html>no</html", "<a/><b/>", "\u{0}"] {
            let page = Page::of(text.as_bytes());
            assert!(page.is_err() || page.is_ok_and(|page| page.next().is_none()), "{text}");
        }
    }

    #[test]
    fn an_object_has_a_version_and_an_upload_time() {
        let mut headers = HeaderMap::new();
        let all = [
            ("content-length", "12"),
            ("etag", "W/\"ab\""),
            ("last-modified", "Mon, 12 Oct 2009 17:50:30 GMT"),
            ("x-amz-meta-mode", "33188"),
        ];
        for (name, value) in all {
            headers.insert(name, value.parse().expect("a value"));
        }
        let head = Head::of(&headers);
        assert_eq!((head.size, head.stored), (12, 1_255_369_830_000_000_000));
        assert_eq!((head.number(), head.attributes.mode), (number_of("\"ab\""), Some(0o100_644)));
        assert_eq!(Head::of(&HeaderMap::new()).size, 0);
        assert_eq!(ErrorResponse::of(b"<Error><Code>SlowDown</Code></Error>").code, "SlowDown");
        assert_eq!(ErrorResponse::of(b"bad gateway").code, "");
    }
}
