//! Where a history is: a directory, or a bucket of an object store.

use std::fmt;
use std::path::PathBuf;

use url::Url;

/// Schemes of object stores: S3 and what speaks its protocol, Google Cloud Storage, Azure Blob Storage. `https` only with
/// the hosts of one of these.
const SCHEMES: &[&str] = &["s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss", "https"];

/// A place for the history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HistoryPlace {
    /// A directory of this host.
    Directory(PathBuf),
    /// A bucket, and a prefix in it.
    Bucket(Url),
}

impl HistoryPlace {
    /// `/var/lib/tracer/history`, `file:///srv/history`, `s3://bucket/prefix`. The error says what was expected.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("expected a directory, or a URL such as s3://bucket/prefix".to_owned());
        }
        let Some((scheme, _)) = text.split_once("://") else { return Ok(Self::Directory(PathBuf::from(text))) };
        // The text may hold a secret: it is not repeated.
        let url = Url::parse(text).map_err(|error| format!("no URL: {error}"))?;
        if scheme.eq_ignore_ascii_case("file") {
            let path = url.to_file_path().map_err(|()| "expected file:///DIRECTORY".to_owned())?;
            return Ok(Self::Directory(path));
        }
        if !SCHEMES.contains(&url.scheme()) {
            return Err(format!(
                "'{}://' is no object store; expected a directory, or a URL such as s3://, gs:// or az://BUCKET/PREFIX",
                url.scheme()
            ));
        }
        if url.password().is_some() || url.query().is_some() || url.fragment().is_some() {
            return Err("expected a URL without a password and without parameters: credentials come from the \
                        environment (AWS_…, GOOGLE_…, AZURE_…) or from the files it names"
                .to_owned());
        }
        if url.host_str().is_none_or(str::is_empty) {
            return Err(format!("expected a bucket: {}://BUCKET/PREFIX", url.scheme()));
        }
        Ok(Self::Bucket(url))
    }
}

impl fmt::Display for HistoryPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => write!(f, "{}", path.display()),
            Self::Bucket(url) => write!(f, "{url}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_and_buckets() {
        for (text, dir) in [("/var/x", "/var/x"), ("x/y", "x/y"), ("file:///srv/h", "/srv/h")] {
            assert_eq!(HistoryPlace::parse(text), Ok(HistoryPlace::Directory(PathBuf::from(dir))), "{text}");
        }
        for text in ["s3://bucket", "s3://bucket/a/b", "gs://b/p", "abfss://fs@account.dfs.core.windows.net/p"] {
            let Ok(HistoryPlace::Bucket(url)) = HistoryPlace::parse(text) else { panic!("{text}") };
            assert_eq!(url.as_str(), text);
        }
    }

    #[test]
    fn secrets_in_the_url_are_refused_and_not_repeated() {
        let refused =
            ["s3://id:hunter2@bucket/p", "https://a.blob.core.windows.net/c?sig=hunter2", "s3://bucket/#hunter2"];
        for text in refused {
            let error = HistoryPlace::parse(text).unwrap_err();
            assert!(error.contains("environment") && !error.contains("hunter2"), "{error}");
        }
        for text in ["", "ftp://x/y", "s3://", "s3:///p", "memory:///", "http://[::/x"] {
            assert!(HistoryPlace::parse(text).is_err(), "{text}");
        }
    }
}
