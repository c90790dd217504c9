//! A store that fails, lies and stands still.

use std::fmt;
use std::sync::Mutex;

use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path as ObjectPath;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use tracer_results::history::directory::{Directory, Options, RealDisk};
use tracer_results::history::rows::{HostRow, WindowRows};
use tracer_results::history::status::Status;

use super::*;

/// What the store does with the next objects that are put, the first first; afterwards it works.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mood {
    Fails,
    /// Says yes and keeps nothing.
    Forgets,
    /// Says yes and keeps a part.
    Tears,
}

#[derive(Debug)]
struct Moody {
    kept: InMemory,
    moods: Mutex<Vec<Mood>>,
}

impl fmt::Display for Moody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("moody")
    }
}

type Later<'a, T> = std::pin::Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

impl ObjectStore for Moody {
    fn put_opts<'a, 'b, 'c>(
        &'a self,
        at: &'b ObjectPath,
        bytes: PutPayload,
        options: PutOptions,
    ) -> Later<'c, PutResult>
    where
        'a: 'c,
        'b: 'c,
        Self: 'c,
    {
        let mood = self.moods.lock().unwrap().pop();
        Box::pin(async move {
            let whole = || Ok(PutResult { e_tag: None, version: None, extensions: http_extensions() });
            match mood {
                Some(Mood::Fails) => Err(Error::Generic { store: "moody", source: "full".into() }),
                Some(Mood::Forgets) => whole(),
                Some(Mood::Tears) => {
                    let bytes = Bytes::from(bytes);
                    self.kept.put(at, bytes.slice(..bytes.len() / 2).into()).await
                }
                None => self.kept.put_opts(at, bytes, options).await,
            }
        })
    }

    fn put_multipart_opts<'a, 'b, 'c>(
        &'a self,
        at: &'b ObjectPath,
        options: PutMultipartOptions,
    ) -> Later<'c, Box<dyn MultipartUpload>>
    where
        'a: 'c,
        'b: 'c,
        Self: 'c,
    {
        self.kept.put_multipart_opts(at, options)
    }

    fn get_opts<'a, 'b, 'c>(&'a self, at: &'b ObjectPath, options: GetOptions) -> Later<'c, GetResult>
    where
        'a: 'c,
        'b: 'c,
        Self: 'c,
    {
        self.kept.get_opts(at, options)
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<ObjectPath>>) -> BoxStream<'static, Result<ObjectPath>> {
        self.kept.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&ObjectPath>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.kept.list(prefix)
    }

    fn list_with_delimiter<'a, 'b, 'c>(&'a self, prefix: Option<&'b ObjectPath>) -> Later<'c, ListResult>
    where
        'a: 'c,
        'b: 'c,
        Self: 'c,
    {
        self.kept.list_with_delimiter(prefix)
    }

    fn copy_opts<'a, 'b, 'c, 'd>(
        &'a self,
        from: &'b ObjectPath,
        to: &'c ObjectPath,
        options: CopyOptions,
    ) -> Later<'d, ()>
    where
        'a: 'd,
        'b: 'd,
        'c: 'd,
        Self: 'd,
    {
        self.kept.copy_opts(from, to, options)
    }
}

fn http_extensions() -> hyper::http::Extensions {
    hyper::http::Extensions::new()
}

fn directory(dir: &Path) -> (Directory, Arc<Status>) {
    let status = Arc::new(Status::default());
    let (dir, max_size, max_age) = (dir.to_owned(), 1 << 30, Duration::from_secs(1 << 30));
    let (hourly_max_age, daily_max_age) = (max_age, max_age);
    let options =
        Options { dir, host: "web-1".to_owned(), max_size, max_age, hourly_max_age, daily_max_age, upload: true };
    (Directory::open(options, Arc::clone(&status), Box::new(RealDisk)).unwrap(), status)
}

fn window(n: u64) -> WindowRows {
    let start_ns = (1_795_503_600 + n * 1800) * 1_000_000_000;
    WindowRows { host: HostRow { start_ns, ..HostRow::default() }, ..WindowRows::default() }
}

/// Every file of the directory, byte by byte, is an object, and there are no others.
async fn assert_same(root: &Path, bucket: &Bucket) {
    let (objects, _) = bucket.list("", 1000).await.unwrap();
    assert!(objects.len() > 1);
    for object in &objects {
        let kept = bucket.get(&object.path, FILE_MAX).await.unwrap();
        assert_eq!(std::fs::read(root.join(&object.path)).unwrap(), kept, "{}", object.path);
    }
    let files =
        std::process::Command::new("find").args([root.to_str().unwrap(), "-name", "*.parquet"]).output().unwrap();
    assert_eq!(String::from_utf8(files.stdout).unwrap().lines().count(), objects.len());
}

#[tokio::test]
async fn whatever_the_store_does_in_the_end_it_has_every_file_whole() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("history");
    let moods = [Mood::Fails, Mood::Forgets, Mood::Tears, Mood::Fails, Mood::Fails, Mood::Tears];
    let store = Arc::new(Moody { kept: InMemory::new(), moods: Mutex::new(moods.to_vec()) });
    let bucket = Bucket::of(store);
    let (mut directory, status) = directory(&root);
    let uploads = directory.uploads().unwrap();
    for n in 0..6 {
        directory.append(&window(n)).unwrap();
    }
    directory.finish();
    let waiting = Arc::clone(&uploads);
    let (to, begun) = (bucket.clone(), Instant::now());
    let task = tokio::spawn(async move { work(&to, &waiting, Duration::from_millis(1)).await });
    while uploads.waiting() > 0 && begun.elapsed() < Duration::from_secs(60) {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(status.uploads_failed.get(), moods.len() as u64);
    assert_eq!((status.upload_waiting.get(), status.uploads_given_up.get()), (0, 0));
    assert_same(&root, &bucket).await;
    uploads.close();
    task.await.unwrap();
}

#[tokio::test]
async fn what_a_run_left_behind_the_next_one_uploads_and_only_that() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("history");
    let store = Arc::new(Moody { kept: InMemory::new(), moods: Mutex::new(Vec::new()) });
    let bucket = Bucket::of(Arc::<Moody>::clone(&store));
    let (mut first, _) = directory(&root);
    first.append(&window(0)).unwrap();
    first.finish();
    let uploads = first.uploads().unwrap();
    Uploader::start(bucket.clone(), &uploads).finish(Instant::now() + Duration::from_secs(30)).await;
    assert_eq!(uploads.waiting(), 0);
    // From here on the store is away: the run ends at once, and loses nothing.
    store.moods.lock().unwrap().extend([Mood::Fails; 8]);
    first.append(&window(4)).unwrap();
    first.finish();
    Uploader::start(bucket.clone(), &uploads).finish(Instant::now() + Duration::from_secs(30)).await;
    assert!(uploads.waiting() > 0);
    drop(first);
    store.moods.lock().unwrap().clear();
    let (mut second, status) = directory(&root);
    let uploads = second.uploads().unwrap();
    assert_eq!(uploads.waiting(), 2, "hosts by window and by hour; a window without classes has no others");
    second.append(&window(8)).unwrap();
    second.finish();
    Uploader::start(bucket.clone(), &uploads).finish(Instant::now() + Duration::from_secs(30)).await;
    assert_eq!(status.uploads_done.get(), 3);
    assert_same(&root, &bucket).await;
}

#[test]
fn pauses_grow_and_differ() {
    let of = |failures| pause(FIRST_PAUSE, failures);
    for (failures, most) in [(1, 1), (2, 2), (5, 16), (7, 60), (u32::MAX, 60)] {
        let most = Duration::from_secs(most);
        assert!(of(failures) <= most && of(failures) >= most / 2, "{failures}: {:?}", of(failures));
    }
    assert!((0..20).map(|_| of(7)).collect::<std::collections::HashSet<_>>().len() > 1);
}
