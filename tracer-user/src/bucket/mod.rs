//! Buckets of object stores: what the history needs of them, with a limit on everything.
//!
//! The crate `object_store` signs requests and knows the stores; `client` carries them with the HTTP client that the agent
//! has anyway. Credentials come from the environment, or from files that it names, as that crate reads them. No message has
//! an answer's body in it: stores repeat what they were sent.

mod client;
pub mod source;
pub mod upload;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path;
use object_store::{BackoffConfig, Error, ObjectStore, ObjectStoreExt, ObjectStoreScheme, RetryConfig};
use url::Url;

use client::Connector;

/// Longest reason that is shown.
const REASON: usize = 200;

/// Why a bucket did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum BucketError {
    /// It cannot be used at all.
    #[error("{0}")]
    Settings(String),
    /// No such object, or no such bucket.
    #[error("not there")]
    NotFound,
    /// Refused by the store.
    #[error("refused: the credentials in the environment are missing, wrong or allow too little")]
    Refused,
    /// It did not work now.
    #[error("{0}")]
    Failed(String),
    /// Larger than anything the history writes.
    #[error("larger than {0} bytes")]
    TooLarge(u64),
}

impl From<Error> for BucketError {
    fn from(error: Error) -> Self {
        match error {
            Error::NotFound { .. } => Self::NotFound,
            Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => Self::Refused,
            other => Self::Failed(reason(&other.to_string())),
        }
    }
}

/// The first line of what a store's crate says, without the body of an answer.
fn reason(text: &str) -> String {
    const STATUS: &str = "status code: ";
    let line = text.lines().next().unwrap_or_default();
    let end = line.find(STATUS).map_or(line.len(), |at| at + STATUS.len() + 3);
    line.chars().take(line.get(..end).unwrap_or(line).chars().count().min(REASON)).collect()
}

/// An object as a list shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedObject {
    /// Below the bucket's prefix.
    pub path: String,
    /// Bytes.
    pub size: u64,
    /// When it was written last, nanoseconds since the epoch.
    pub modified_ns: i64,
}

/// A bucket, and a prefix in it.
#[derive(Clone, Debug)]
pub struct Bucket {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    place: String,
}

impl Bucket {
    /// Reads credentials and options from the environment; connects to nothing. `retries`: of each request, beyond the
    /// first attempt.
    pub fn open(url: &Url, retries: usize) -> Result<Self, BucketError> {
        let wrong = |what: String| BucketError::Settings(format!("{url}: {}", reason(&what)));
        let (scheme, prefix) = ObjectStoreScheme::parse(url).map_err(|error| wrong(error.to_string()))?;
        let retry = RetryConfig {
            backoff: BackoffConfig { max_backoff: Duration::from_secs(5), ..BackoffConfig::default() },
            max_retries: retries,
            retry_timeout: client::TIMEOUT,
        };
        let text = url.to_string();
        let store: object_store::Result<Arc<dyn ObjectStore>> = match scheme {
            ObjectStoreScheme::AmazonS3 => AmazonS3Builder::from_env()
                .with_url(text)
                .with_retry(retry)
                .with_http_connector(Connector)
                .build()
                .map(|store| Arc::new(store) as _),
            ObjectStoreScheme::GoogleCloudStorage => GoogleCloudStorageBuilder::from_env()
                .with_url(text)
                .with_retry(retry)
                .with_http_connector(Connector)
                .build()
                .map(|store| Arc::new(store) as _),
            ObjectStoreScheme::MicrosoftAzure => MicrosoftAzureBuilder::from_env()
                .with_url(text)
                .with_retry(retry)
                .with_http_connector(Connector)
                .build()
                .map(|store| Arc::new(store) as _),
            _ => return Err(wrong("expected s3://, gs:// or az://BUCKET/PREFIX".to_owned())),
        };
        Ok(Self { store: store.map_err(|error| wrong(error.to_string()))?, prefix, place: url.to_string() })
    }

    /// One in memory, for tests.
    #[cfg(test)]
    pub(crate) fn of(store: Arc<dyn ObjectStore>) -> Self {
        Self { store, prefix: Path::from("prefix"), place: "memory".to_owned() }
    }

    /// Its URL.
    pub fn place(&self) -> &str {
        &self.place
    }

    fn path(&self, relative: &str) -> Path {
        self.prefix.parts().chain(Path::from(relative).parts()).collect()
    }

    /// Stores an object, whole or not at all.
    pub async fn put(&self, relative: &str, bytes: Bytes) -> Result<(), BucketError> {
        self.store.put(&self.path(relative), bytes.into()).await?;
        Ok(())
    }

    /// The size of an object.
    pub async fn size(&self, relative: &str) -> Result<u64, BucketError> {
        Ok(self.store.head(&self.path(relative)).await?.size)
    }

    /// An object of at most `most` bytes.
    pub async fn get(&self, relative: &str, most: u64) -> Result<Bytes, BucketError> {
        let found = self.store.get(&self.path(relative)).await?;
        if found.meta.size > most {
            return Err(BucketError::TooLarge(most));
        }
        Ok(found.bytes().await?)
    }

    /// Objects below a path, at most `most`; and whether there are more.
    pub async fn list(&self, below: &str, most: usize) -> Result<(Vec<ListedObject>, bool), BucketError> {
        let below = self.path(below);
        let mut all = self.store.list(Some(&below));
        let mut listed = Vec::new();
        while let Some(object) = all.next().await {
            let object = object?;
            if listed.len() >= most {
                return Ok((listed, true));
            }
            let Some(parts) = object.location.prefix_match(&self.prefix) else { continue };
            let path = parts.map(|part| part.as_ref().to_owned()).collect::<Vec<_>>().join("/");
            let modified_ns = object.last_modified.timestamp_nanos_opt().unwrap_or(0);
            listed.push(ListedObject { path, size: object.size, modified_ns });
        }
        Ok((listed, false))
    }

    /// Names one level below a path, such as the dates of a table.
    pub async fn names(&self, below: &str) -> Result<Vec<String>, BucketError> {
        let found = self.store.list_with_delimiter(Some(&self.path(below))).await?;
        Ok(found.common_prefixes.iter().filter_map(|path| path.filename().map(str::to_owned)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_short_and_without_what_the_store_answered() {
        let text = "Generic S3 error: Server returned non-2xx status code: 400: <Error><AWSAccessKeyId>AK";
        assert_eq!(reason(text), "Generic S3 error: Server returned non-2xx status code: 400");
        assert_eq!(reason("a\nsecret"), "a");
        assert_eq!(reason(&"ä".repeat(500)).chars().count(), REASON);
        assert_eq!(reason("status code: "), "status code: ");
    }

    #[test]
    fn buckets_open_without_connecting() {
        let open = |text: &str| Bucket::open(&text.parse().unwrap(), 0);
        assert_eq!(open("s3://bucket/a/b").unwrap().path("kind=hosts/x").as_ref(), "a/b/kind=hosts/x");
        assert!(matches!(open("memory:///x"), Err(BucketError::Settings(_))));
        assert!(matches!(open("https://example.com/x"), Err(BucketError::Settings(_))));
    }

    #[tokio::test]
    async fn objects_are_listed_below_the_prefix_within_bounds() {
        let bucket = Bucket::of(Arc::new(object_store::memory::InMemory::new()));
        for name in ["kind=hosts/date=1/a", "kind=hosts/date=2/b", "kind=classes/date=1/c"] {
            bucket.put(name, Bytes::from_static(b"12345")).await.unwrap();
        }
        let (listed, more) = bucket.list("kind=hosts", 10).await.unwrap();
        let paths: Vec<&str> = listed.iter().map(|object| object.path.as_str()).collect();
        assert_eq!((paths, more), (vec!["kind=hosts/date=1/a", "kind=hosts/date=2/b"], false));
        assert!(bucket.list("", 2).await.unwrap().1);
        assert_eq!(bucket.names("kind=hosts").await.unwrap(), ["date=1", "date=2"]);
        assert_eq!(bucket.size("kind=hosts/date=1/a").await.unwrap(), 5);
        assert!(matches!(bucket.get("kind=hosts/date=1/a", 4).await, Err(BucketError::TooLarge(4))));
        assert!(matches!(bucket.get("kind=hosts/none", 4).await, Err(BucketError::NotFound)));
    }
}
