//! Hours and days beside the windows: a file of hours a day, to which each journal adds its windows when it is complete, and
//! one of the day when that is over.
//!
//! A file of hours names the journals that are in it. So one that is read again after a crash counts once, and a day is made
//! from its hours again whenever these changed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::{Age, Directory, about};
use crate::history::layout;
use crate::history::parquet_file::{self, Builder};
use crate::history::rows::{ClassRow, EdgeRow, GoalRow, HostRow, WindowRows};
use crate::history::summary::{DAY_S, HOUR_S, Sum, Summary};

/// Files of a day of one table: others than the first only where one cannot be read.
const FILES_MAX: u32 = 8;

/// Rows of a summary, and the journals that are in it.
type Contents<R> = (Vec<R>, Vec<String>);

/// The windows of a journal by the hour.
#[derive(Debug)]
pub(super) struct HourlySums {
    hosts: Summary<HostRow>,
    classes: Summary<ClassRow>,
    edges: Summary<EdgeRow>,
    goals: Summary<GoalRow>,
}

impl HourlySums {
    pub(super) fn new() -> Self {
        let (hosts, classes) = (Summary::new(HOUR_S), Summary::new(HOUR_S));
        Self { hosts, classes, edges: Summary::new(HOUR_S), goals: Summary::new(HOUR_S) }
    }

    pub(super) fn window(&mut self, window: &WindowRows) {
        self.hosts.add(&window.host);
        window.classes.iter().for_each(|row| self.classes.add(row));
        window.edges.iter().for_each(|row| self.edges.add(row));
        window.goals.iter().for_each(|row| self.goals.add(row));
    }
}

/// The first second of the day.
pub(super) fn day_of(start_s: i64) -> i64 {
    start_s.div_euclid(DAY_S as i64) * DAY_S as i64
}

impl Directory {
    /// Adds the windows of a complete journal to the hours of its day.
    pub(super) fn add_hours(&mut self, stem: &str, hours: &HourlySums) -> io::Result<()> {
        let Some((_, start_s)) = layout::parse_stem(stem) else { return Ok(()) };
        let day = day_of(start_s);
        let hosts = self.add_to_day(day, stem, &hours.hosts, |_| ())?;
        let lengths = hosts.lengths();
        self.add_to_day(day, stem, &hours.classes, |classes| classes.set_lengths(&lengths))?;
        self.add_to_day(day, stem, &hours.edges, |edges| edges.set_lengths(&lengths))?;
        self.add_to_day(day, stem, &hours.goals, |goals| goals.set_lengths(&lengths))?;
        self.changed_days.insert(day);
        Ok(())
    }

    /// Returns all hours of the day's file.
    fn add_to_day<R: Sum>(
        &mut self,
        day: i64,
        stem: &str,
        hours: &Summary<R>,
        complete: impl Fn(&mut Summary<R>),
    ) -> io::Result<Summary<R>> {
        let mut all = Summary::new(HOUR_S);
        let Some((path, (rows, mut sources))) = self.day_file::<R>(R::HOURLY, day) else { return Ok(all) };
        for row in &rows {
            all.add(row);
        }
        if sources.iter().any(|source| source == stem) {
            return Ok(all);
        }
        for row in hours.rows() {
            all.add(row);
        }
        if all.is_empty() {
            return Ok(all);
        }
        complete(&mut all);
        sources.push(stem.to_owned());
        self.put_summary(&path, (Age::Hours, day), &all, &sources)?;
        Ok(all)
    }

    /// The file of a day, and what is in it. None: the names are taken by files that cannot be read.
    fn day_file<R: Sum>(&self, kind: &str, day: i64) -> Option<(PathBuf, Contents<R>)> {
        for number in 0..FILES_MAX {
            let name = format!("{}{}", layout::stem(&self.host, day, number), layout::PARQUET);
            let path = layout::day(&self.options.dir, kind, day).join(name);
            match fs::symlink_metadata(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Some((path, Default::default())),
                Ok(metadata) if metadata.is_file() => {
                    let read = File::open(&path).map_err(Into::into).and_then(parquet_file::read_summary::<R>);
                    if let Ok(read) = read {
                        return Some((path, read));
                    }
                }
                _ => {}
            }
        }
        log::warn!("history: {kind}: the files of a day cannot be read: its hours are not kept");
        None
    }

    fn put_summary<R: Sum>(
        &mut self,
        path: &Path,
        (age, day): (Age, i64),
        summary: &Summary<R>,
        sources: &[String],
    ) -> io::Result<()> {
        let mut builder = Builder::summary(sources).map_err(io::Error::other)?;
        for row in summary.rows() {
            builder.push(row).map_err(io::Error::other)?;
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let temporary = format!("{}-{}", if age == Age::Days { R::DAILY } else { R::HOURLY }, name);
        self.put(path, &temporary, &builder.finish().map_err(io::Error::other)?, (age, day))
    }

    /// Makes the days before the one of `now_s` whose hours changed. What fails is tried again after the next hour.
    pub(super) fn make_days(&mut self, now_s: i64) {
        let over: Vec<i64> = self.changed_days.range(..day_of(now_s)).copied().collect();
        for day in over {
            match self.make_day(day) {
                Ok(()) => drop(self.changed_days.remove(&day)),
                Err(error) => {
                    self.status.files_failed.add(1);
                    log::warn!("history: {error}: this day's summary follows when this passes");
                }
            }
        }
    }

    fn make_day(&mut self, day: i64) -> io::Result<()> {
        let hosts = self.hours_of::<HostRow>(day)?;
        let (mut classes, mut edges, mut goals) =
            (self.hours_of::<ClassRow>(day)?, self.hours_of::<EdgeRow>(day)?, self.hours_of::<GoalRow>(day)?);
        let lengths = hosts.lengths();
        classes.set_lengths(&lengths);
        edges.set_lengths(&lengths);
        goals.set_lengths(&lengths);
        let known = self.day_file::<ClassRow>(ClassRow::DAILY, day);
        let before = known.map_or(0, |(_, (rows, _))| rows.iter().map(|row| row.count).sum::<u64>());
        if before > classes.requests() {
            log::warn!("history: hours of a day are gone: its summary stays as it is");
            return Ok(());
        }
        // That of hosts, which every day has, says that all are there.
        self.put_day(day, &classes)?;
        self.put_day(day, &edges)?;
        self.put_day(day, &goals)?;
        self.put_day(day, &hosts)
    }

    /// All hours of a day of one table, added up.
    fn hours_of<R: Sum>(&self, day: i64) -> io::Result<Summary<R>> {
        let mut sums = Summary::new(DAY_S);
        let table = self.options.dir.join(format!("kind={}", R::HOURLY));
        let of_day = (day, PathBuf::new())..(day + 1, PathBuf::new());
        let files = self.stored[Age::Hours as usize].range(of_day).map(|((_, path), _)| path);
        for path in files.filter(|path| path.starts_with(&table)) {
            let file = File::open(path).map_err(|error| about(error, "cannot read", path))?;
            match parquet_file::read::<R, _>(file) {
                Ok(rows) => rows.iter().for_each(|row| sums.add(row)),
                // Damaged since it was written; it was named when it was found.
                Err(error) => log::warn!("history: {}: {error}: not in its day", path.display()),
            }
        }
        Ok(sums)
    }

    fn put_day<R: Sum>(&mut self, day: i64, summary: &Summary<R>) -> io::Result<()> {
        let Some((path, _)) = self.day_file::<R>(R::DAILY, day).filter(|_| !summary.is_empty()) else { return Ok(()) };
        self.put_summary(&path, (Age::Days, day), summary, &[])
    }

    /// Days whose summary is missing, or older than their hours.
    pub(super) fn find_changed_days(&mut self) {
        let modified = |path: &PathBuf| fs::symlink_metadata(path).and_then(|metadata| metadata.modified()).ok();
        let hosts = self.options.dir.join(format!("kind={}", HostRow::DAILY));
        let mut made = BTreeMap::new();
        for (day, path) in self.stored[Age::Days as usize].keys().filter(|(_, path)| path.starts_with(&hosts)) {
            let at = modified(path);
            made.entry(*day).and_modify(|known| *known = at.max(*known)).or_insert(at);
        }
        for (day, path) in self.stored[Age::Hours as usize].keys() {
            if made.get(day).is_none_or(|made| modified(path) >= *made) {
                self.changed_days.insert(*day);
            }
        }
    }
}
