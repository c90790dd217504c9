//! Rows to Parquet and back. One file is one table; it carries the version of its columns.

use std::fs::File;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::Compression;
use parquet::column::reader::ColumnReader;
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, FloatType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::{KeyValue, ParquetMetaData};
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesPtr};
use parquet::file::reader::{ChunkReader, FileReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::TypePtr;

use super::rows::{ColumnType, HistoryRow, Value};

/// Version of the columns' meaning. A column may be added without a new one.
pub const VERSION: u32 = 1;
/// Key of the version in the file's metadata.
pub const VERSION_KEY: &str = "tracer.history.version";
/// Key of the files that a summary was made from, a name a line.
const SOURCES_KEY: &str = "tracer.history.sources";
/// Rows held in memory until they are written as one group.
const GROUP_ROWS: usize = 8192;
/// Most rows that are read from one file.
const READ_ROWS: usize = 1 << 20;

/// Why a file is not read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// No such file, or no right to read it.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// Torn, damaged, or another kind of file.
    #[error("no whole Parquet file: {0}")]
    Damaged(String),
    /// Another program's file.
    #[error("a Parquet file, but not of tracer's history")]
    Foreign,
    /// A newer agent's file.
    #[error("written by a newer tracer (version {0} of its columns, this one reads {VERSION}): update tracer")]
    Newer(u32),
    /// A column has another type or is missing.
    #[error("expected the columns of version {VERSION}: {0}")]
    Columns(String),
}

impl From<ParquetError> for ReadError {
    fn from(error: ParquetError) -> Self {
        Self::Damaged(error.to_string())
    }
}

/// The values of one column.
#[derive(Debug)]
enum Column {
    Integers(Vec<i64>),
    Floats(Vec<f64>),
    Singles(Vec<f32>),
    Texts(Vec<ByteArray>),
    /// Values, then definition and repetition levels.
    Lists(Vec<i64>, Vec<i16>, Vec<i16>),
    FloatLists(Vec<f64>, Vec<i16>, Vec<i16>),
}

impl Column {
    fn new(kind: ColumnType) -> Self {
        match kind {
            ColumnType::Integer => Self::Integers(Vec::new()),
            ColumnType::Float => Self::Floats(Vec::new()),
            ColumnType::Single => Self::Singles(Vec::new()),
            ColumnType::Text => Self::Texts(Vec::new()),
            ColumnType::Integers => Self::Lists(Vec::new(), Vec::new(), Vec::new()),
            ColumnType::Floats => Self::FloatLists(Vec::new(), Vec::new(), Vec::new()),
        }
    }

    fn push(&mut self, value: Value) {
        match (self, value) {
            (Self::Integers(all), Value::Integer(value)) => all.push(value as i64),
            (Self::Floats(all), Value::Float(value)) => all.push(value),
            (Self::Singles(all), Value::Single(value)) => all.push(value),
            (Self::Texts(all), Value::Text(text)) => all.push(ByteArray::from(text.as_bytes().to_vec())),
            (Self::Lists(all, definition, repetition), Value::Integers(values)) => {
                for (n, value) in values.into_iter().enumerate() {
                    all.push(value as i64);
                    definition.push(1);
                    repetition.push(i16::from(n > 0));
                }
            }
            (Self::FloatLists(all, definition, repetition), Value::Floats(values)) => {
                for (n, value) in values.into_iter().enumerate() {
                    all.push(value);
                    definition.push(1);
                    repetition.push(i16::from(n > 0));
                }
            }
            // `HistoryRow` has the types of its own columns.
            (_, value) => debug_assert!(false, "{value:?} in a column of another type"),
        }
    }
}

/// Writes a file, in memory: it is small, and on disk it appears as a whole.
#[derive(Debug)]
pub struct Builder<R> {
    writer: SerializedFileWriter<Vec<u8>>,
    columns: Vec<Column>,
    waiting: usize,
    rows: usize,
    kind: PhantomData<R>,
}

impl<R: HistoryRow> Builder<R> {
    /// A file without rows.
    pub fn new() -> Result<Self, ParquetError> {
        Self::with(Vec::new())
    }

    /// A summary of the files with these names.
    pub(super) fn summary(sources: &[String]) -> Result<Self, ParquetError> {
        Self::with(vec![KeyValue::new(SOURCES_KEY.to_owned(), sources.join("\n"))])
    }

    fn with(pairs: Vec<KeyValue>) -> Result<Self, ParquetError> {
        let writer = SerializedFileWriter::new(Vec::new(), schema::<R>()?, properties(pairs))?;
        Ok(Self { writer, columns: Self::columns(), waiting: 0, rows: 0, kind: PhantomData })
    }

    fn columns() -> Vec<Column> {
        R::COLUMNS.iter().map(|(_, kind)| Column::new(*kind)).collect()
    }

    /// Rows so far.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Adds a row.
    pub fn push(&mut self, row: &R) -> Result<(), ParquetError> {
        for (column, value) in self.columns.iter_mut().zip(row.values()) {
            column.push(value);
        }
        self.rows += 1;
        self.waiting += 1;
        if self.waiting >= GROUP_ROWS { self.write_group() } else { Ok(()) }
    }

    fn write_group(&mut self) -> Result<(), ParquetError> {
        if self.waiting == 0 {
            return Ok(());
        }
        self.waiting = 0;
        let mut group = self.writer.next_row_group()?;
        for column in std::mem::replace(&mut self.columns, Self::columns()) {
            let Some(mut writer) = group.next_column()? else { break };
            match column {
                Column::Integers(all) => writer.typed::<Int64Type>().write_batch(&all, None, None)?,
                Column::Floats(all) => writer.typed::<DoubleType>().write_batch(&all, None, None)?,
                Column::Singles(all) => writer.typed::<FloatType>().write_batch(&all, None, None)?,
                Column::Texts(all) => writer.typed::<ByteArrayType>().write_batch(&all, None, None)?,
                Column::Lists(all, definition, repetition) => {
                    writer.typed::<Int64Type>().write_batch(&all, Some(&definition), Some(&repetition))?
                }
                Column::FloatLists(all, definition, repetition) => {
                    writer.typed::<DoubleType>().write_batch(&all, Some(&definition), Some(&repetition))?
                }
            };
            writer.close()?;
        }
        group.close()?;
        Ok(())
    }

    /// The bytes of the file.
    pub fn finish(mut self) -> Result<Vec<u8>, ParquetError> {
        self.write_group()?;
        self.writer.into_inner()
    }
}

fn schema<R: HistoryRow>() -> Result<TypePtr, ParquetError> {
    let list = |name: &str, of: &str| {
        format!("required group {name} (LIST) {{ repeated group list {{ required {of} element; }} }}")
    };
    let columns = R::COLUMNS.iter().map(|(name, kind)| match kind {
        ColumnType::Integer => format!("required int64 {name};"),
        ColumnType::Float => format!("required double {name};"),
        ColumnType::Single => format!("required float {name};"),
        ColumnType::Text => format!("required binary {name} (UTF8);"),
        ColumnType::Integers => list(name, "int64"),
        ColumnType::Floats => list(name, "double"),
    });
    let columns = columns.collect::<Vec<_>>().join(" ");
    parse_message_type(&format!("message {} {{ {columns} }}", R::KIND)).map(Arc::new)
}

fn properties(mut pairs: Vec<KeyValue>) -> WriterPropertiesPtr {
    pairs.push(KeyValue::new(VERSION_KEY.to_owned(), VERSION.to_string()));
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_created_by(format!("tracer {}", env!("CARGO_PKG_VERSION")))
        // Of row groups, for readers that skip; of pages they would be larger than what they save here.
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_offset_index_disabled(true)
        .set_key_value_metadata(Some(pairs));
    Arc::new(properties.build())
}

/// Whether a file is whole and of a version that this agent knows. Reads its end only.
pub fn check(path: &Path) -> Result<(), ReadError> {
    let file = File::open(path)?;
    guarded(|| version(SerializedFileReader::new(file)?.metadata()))
}

/// The rows of a file, given as a `File` or as `Bytes`.
pub fn read<R: HistoryRow, S: ChunkReader + 'static>(source: S) -> Result<Vec<R>, ReadError> {
    guarded(|| rows(&SerializedFileReader::new(source)?))
}

/// The rows of a summary, and the names of the files it was made from.
pub(super) fn read_summary<R: HistoryRow>(file: File) -> Result<(Vec<R>, Vec<String>), ReadError> {
    guarded(|| {
        let reader = SerializedFileReader::new(file)?;
        let sources = pair(reader.metadata(), SOURCES_KEY).map(|sources| sources.lines().map(str::to_owned).collect());
        Ok((rows(&reader)?, sources.unwrap_or_default()))
    })
}

/// The rows of a file in memory.
pub fn read_bytes<R: HistoryRow>(bytes: Vec<u8>) -> Result<Vec<R>, ReadError> {
    read(Bytes::from(bytes))
}

/// The reader has assertions about what it reads, and the file may be anyone's.
fn guarded<T>(read: impl FnOnce() -> Result<T, ReadError>) -> Result<T, ReadError> {
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| Err(ReadError::Damaged("its reader gave up".to_owned())))
}

fn pair<'a>(metadata: &'a ParquetMetaData, key: &str) -> Option<&'a str> {
    let pairs = metadata.file_metadata().key_value_metadata()?;
    pairs.iter().find(|pair| pair.key == key)?.value.as_deref()
}

fn version(metadata: &ParquetMetaData) -> Result<(), ReadError> {
    let version = pair(metadata, VERSION_KEY).and_then(|version| version.parse().ok()).ok_or(ReadError::Foreign)?;
    if version > VERSION { Err(ReadError::Newer(version)) } else { Ok(()) }
}

fn rows<R: HistoryRow>(reader: &impl FileReader) -> Result<Vec<R>, ReadError> {
    let metadata = reader.metadata();
    version(metadata)?;
    let schema = metadata.file_metadata().schema_descr_ptr();
    let mut rows = Vec::new();
    for group in 0..metadata.num_row_groups() {
        let group = reader.get_row_group(group)?;
        let count = usize::try_from(group.metadata().num_rows()).unwrap_or(usize::MAX);
        if rows.len().saturating_add(count) > READ_ROWS {
            return Err(ReadError::Damaged(format!("more than {READ_ROWS} rows")));
        }
        let mut columns = Vec::new();
        let defaults = R::default().values();
        for (n, (name, kind)) in R::COLUMNS.iter().enumerate() {
            let at =
                schema.columns().iter().position(|column| column.path().parts().first().is_some_and(|p| p == name));
            let at = match (at, defaults.get(n)) {
                (Some(at), _) => at,
                // Added later than the file was written.
                (None, Some(default)) if n >= R::FIRST => {
                    columns.push(vec![default.clone(); count].into_iter());
                    continue;
                }
                _ => return Err(ReadError::Columns(format!("{name} is missing"))),
            };
            let column = values(group.get_column_reader(at)?, *kind, count)?;
            let column = column.ok_or_else(|| ReadError::Columns(format!("{name} is no {kind:?}")))?;
            columns.push(column.into_iter());
        }
        for _ in 0..count {
            let row = R::from_values(&mut columns.iter_mut().map_while(Iterator::next));
            rows.push(row.ok_or_else(|| ReadError::Columns("a value is missing or out of range".to_owned()))?);
        }
    }
    Ok(rows)
}

/// All values of a column in one group. None: it has another type.
fn values(reader: ColumnReader, kind: ColumnType, count: usize) -> Result<Option<Vec<Value>>, ReadError> {
    let (mut definition, mut repetition) = (Vec::new(), Vec::new());
    Ok(Some(match (reader, kind) {
        (ColumnReader::Int64ColumnReader(mut reader), ColumnType::Integer) => {
            let mut all = Vec::new();
            reader.read_records(count, None, None, &mut all)?;
            all.into_iter().map(|value| Value::Integer(value as u64)).collect()
        }
        (ColumnReader::DoubleColumnReader(mut reader), ColumnType::Float) => {
            let mut all = Vec::new();
            reader.read_records(count, None, None, &mut all)?;
            all.into_iter().map(Value::Float).collect()
        }
        (ColumnReader::FloatColumnReader(mut reader), ColumnType::Single) => {
            let mut all = Vec::new();
            reader.read_records(count, None, None, &mut all)?;
            all.into_iter().map(Value::Single).collect()
        }
        (ColumnReader::ByteArrayColumnReader(mut reader), ColumnType::Text) => {
            let mut all = Vec::new();
            reader.read_records(count, None, None, &mut all)?;
            let text = |bytes: ByteArray| Some(Value::Text(std::str::from_utf8(bytes.data()).ok()?.into()));
            return Ok(all.into_iter().map(text).collect());
        }
        (ColumnReader::Int64ColumnReader(mut reader), ColumnType::Integers) => {
            let mut all = Vec::new();
            reader.read_records(count, Some(&mut definition), Some(&mut repetition), &mut all)?;
            let lists = lists(&all, &definition, &repetition).into_iter();
            lists.map(|list| Value::Integers(list.into_iter().map(|value| value as u64).collect())).collect()
        }
        (ColumnReader::DoubleColumnReader(mut reader), ColumnType::Floats) => {
            let mut all = Vec::new();
            reader.read_records(count, Some(&mut definition), Some(&mut repetition), &mut all)?;
            lists(&all, &definition, &repetition).into_iter().map(Value::Floats).collect()
        }
        _ => return Ok(None),
    }))
}

/// The lists that the levels describe: a repetition of 0 begins one, a definition of 0 says that it is empty.
fn lists<T: Copy>(values: &[T], definition: &[i16], repetition: &[i16]) -> Vec<Vec<T>> {
    let mut lists: Vec<Vec<T>> = Vec::new();
    let mut values = values.iter();
    for (definition, repetition) in definition.iter().zip(repetition) {
        if *repetition == 0 {
            lists.push(Vec::new());
        }
        if *definition > 0
            && let (Some(list), Some(value)) = (lists.last_mut(), values.next())
        {
            list.push(*value);
        }
    }
    lists
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::rows::{ClassRow, DurationHistogram, EdgeRow, HostRow, Identity, Seconds};

    fn class(n: u64) -> ClassRow {
        let mut duration_histogram = DurationHistogram::default();
        duration_histogram.add(n * 1_000_000, n as u32);
        ClassRow {
            start_ns: 1_790_000_000_000_000_000 + n,
            length_s: 10.0,
            host: "Rechner-ä".into(),
            request_class: format!("GET /{}", n % 5).into(),
            identity: Identity(0xfedc_ba98_7654_3210),
            count: n,
            duration_s: n as f64 / 3.0,
            duration_histogram,
            count_by_size: [n, 0, 1],
            cpu_s_by_size: [n as f64, 0.0, 0.5],
            ..ClassRow::default()
        }
    }

    fn file<R: HistoryRow>(rows: &[R]) -> Vec<u8> {
        let mut builder = Builder::new().unwrap();
        for row in rows {
            builder.push(row).unwrap();
        }
        assert_eq!(builder.rows(), rows.len());
        builder.finish().unwrap()
    }

    #[test]
    fn what_was_written_is_read() {
        // More than one group of rows.
        let classes: Vec<ClassRow> = (0..GROUP_ROWS as u64 + 100).map(class).collect();
        assert_eq!(read_bytes::<ClassRow>(file(&classes)).unwrap(), classes);
        let host = HostRow { busy_s: f64::MIN_POSITIVE, events_lost: 7, ..HostRow::default() };
        assert_eq!(read_bytes::<HostRow>(file(std::slice::from_ref(&host))).unwrap(), [host]);
        assert!(read_bytes::<HostRow>(file::<HostRow>(&[])).unwrap().is_empty());
        let edge = EdgeRow { count: -2, duration_s: Seconds(-0.375), cpu_s: Seconds(1.0 / 3.0), ..EdgeRow::default() };
        let read = read_bytes::<EdgeRow>(file(std::slice::from_ref(&edge))).unwrap().remove(0);
        assert!((read.cpu_s.0 * 3.0 - 1.0).abs() < 1e-7, "{read:?}");
        assert_eq!(read, EdgeRow { cpu_s: read.cpu_s, ..edge });
    }

    #[test]
    fn torn_foreign_and_newer_files_are_refused_with_the_reason() {
        let whole = file(&[class(1), class(2)]);
        for length in 0..whole.len() {
            let error = read_bytes::<ClassRow>(whole[..length].to_vec()).unwrap_err();
            assert!(matches!(error, ReadError::Damaged(_)), "{length}: {error}");
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, &whole).unwrap();
        check(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        assert!(matches!(check(&path), Err(ReadError::Damaged(_))));
        assert!(matches!(check(dir.path().join("none").as_path()), Err(ReadError::Io(_))));
        // Of another table.
        assert!(read_bytes::<HostRow>(whole.clone()).unwrap_err().to_string().contains("cores is missing"));
        // Another program's, and one of a later version.
        let with = |key: &str, value: &str| {
            let pairs = Some(vec![KeyValue::new(key.to_owned(), value.to_owned())]);
            let properties = Arc::new(WriterProperties::builder().set_key_value_metadata(pairs).build());
            let writer = SerializedFileWriter::new(Vec::new(), schema::<ClassRow>().unwrap(), properties).unwrap();
            read_bytes::<ClassRow>(writer.into_inner().unwrap()).unwrap_err()
        };
        assert!(matches!(with("pandas", "{}"), ReadError::Foreign));
        assert!(matches!(with(VERSION_KEY, "2"), ReadError::Newer(2)));
        assert!(matches!(with(VERSION_KEY, "many"), ReadError::Foreign));
    }

    /// A table as an earlier agent had it.
    #[derive(Clone, Debug, Default, PartialEq)]
    struct Earlier(HostRow);

    impl HistoryRow for Earlier {
        const KIND: &'static str = "hosts";
        const COLUMNS: &'static [(&'static str, ColumnType)] = HostRow::COLUMNS.split_at(HostRow::FIRST).0;
        const FIRST: usize = HostRow::FIRST;
        const SECOND: usize = HostRow::FIRST;
        fn values(&self) -> Vec<Value> {
            self.0.values().into_iter().take(HostRow::FIRST).collect()
        }
        fn from_values(_: &mut dyn Iterator<Item = Value>) -> Option<Self> {
            None
        }
    }

    #[test]
    fn files_without_the_added_columns_are_read_with_defaults() {
        let row = HostRow { start_ns: 4, busy_s: 2.0, loss: 0.5, last: 1, ..HostRow::default() };
        let read = read_bytes::<HostRow>(file(&[Earlier(row.clone())])).unwrap();
        assert_eq!(read, [HostRow { loss: 0.0, last: 0, ..row }]);
    }

    #[test]
    fn never_panics_on_damaged_files() {
        let whole = file(&[class(1), class(2)]);
        // Silent, as a panic of the reader is expected here.
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| ()));
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0xff;
            let _ = read_bytes::<ClassRow>(damaged);
        }
        std::panic::set_hook(hook);
    }
}
