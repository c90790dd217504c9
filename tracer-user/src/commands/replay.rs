//! `tracer replay`: runs a recording through the same pipeline.

use std::io::Read;

use serde_json::json;
use tracer_host::guard::shed::Level;
use tracer_host::process::ProcessFacts;
use tracer_model::ClassId;
use tracer_results::record::{FrameKind, RecordError, RecordingReader};

use super::transactions_file::Lines;
use super::{Failure, summary};
use crate::cli::Replay;
use crate::config::Config;
use crate::pipeline::{Introduce, Pipeline};

/// The recording introduces processes before their records.
struct Recorded;

impl Introduce for Recorded {
    fn introduce(&mut self, _: u32) -> Option<ProcessFacts> {
        None
    }
}

/// Runs a recording and prints its classes. A truncated file is processed as far as it goes and then fails.
pub fn replay(options: &Replay) -> Result<(), Failure> {
    let config = match &options.config {
        Some(path) => Config::load(path)?,
        None => Config::default(),
    };
    let mut reader = RecordingReader::open(&options.file)?;
    let origin = reader.origin.clone();
    let mut pipeline = Pipeline::new(&config, origin.seed, origin.wall_offset, &origin.host);
    if let Some(path) = &options.transactions {
        pipeline.write_spans(Box::new(Lines::create_whole(path, origin.wall_offset, &origin.host)?));
    }
    let ended = frames(&mut reader, &mut pipeline);
    pipeline.finish();
    if options.json {
        let names = pipeline.names();
        let classes: Vec<_> = (0..names.classes.len() as u32)
            .map(ClassId)
            .filter_map(|id| names.class(id).map(|info| (info, pipeline.stats.figures(id))))
            .map(|(info, figures)| {
                json!({
                    "service_name": &*info.service_name, "request_class": &*info.name, "side": info.side.name(),
                    "count": figures.count, "errors": figures.errors, "unfinished": figures.unfinished,
                    "p50_s": figures.p50_s, "p95_s": figures.p95_s, "p99_s": figures.p99_s, "cpu_s": figures.cpu_s,
                })
            })
            .collect();
        println!("{}", json!({ "classes": classes }));
    } else {
        print!("{}", summary::table(&pipeline, None));
    }
    Ok(ended?)
}

/// Feeds every frame to the pipeline, up to the end of the recording or its first error.
pub fn frames<R: Read>(reader: &mut RecordingReader<R>, pipeline: &mut Pipeline) -> Result<(), RecordError> {
    loop {
        match reader.next_frame() {
            Ok((FrameKind::Record, bytes)) => {
                pipeline.record(bytes, &mut Recorded);
                // A replay has no kernel side to update.
                pipeline.take_policies().for_each(drop);
                pipeline.take_wanted().for_each(drop);
                pipeline.take_outgoing().for_each(drop);
            }
            Ok((FrameKind::Process, bytes)) => match serde_json::from_slice::<ProcessFacts>(bytes) {
                Ok(facts) => pipeline.process(facts.pid, &facts),
                Err(error) => eprintln!("tracer: facts of a process could not be read ({error}); it stays unnamed"),
            },
            Ok((FrameKind::Tick, bytes)) => {
                if let Ok(now) = bytes.try_into() {
                    pipeline.tick(u64::from_ne_bytes(now));
                }
            }
            Ok((FrameKind::Clock, bytes)) => {
                if let Ok(offset) = bytes.try_into() {
                    pipeline.clock(i64::from_ne_bytes(offset));
                }
            }
            Ok((FrameKind::Shed, bytes)) => {
                if let Some(level) = bytes.first() {
                    pipeline.shed(Level::from_number(*level));
                }
            }
            Ok((FrameKind::Relay, bytes)) => {
                if let Some((now, event)) = tracer_relay::event::Event::decode(bytes) {
                    pipeline.relayed(now, event);
                }
                pipeline.take_outgoing().for_each(drop);
            }
            Ok((FrameKind::Lost, bytes)) => {
                if let Some((since, rest)) = bytes.split_first_chunk()
                    && let Some((until, _)) = rest.split_first_chunk()
                {
                    pipeline.lost(u64::from_ne_bytes(*since), u64::from_ne_bytes(*until));
                }
            }
            Ok((FrameKind::End, _)) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}
