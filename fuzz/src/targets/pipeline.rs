//! Replays arbitrary bytes as a recording, and checks the output.
use tracer_results::metrics::Format;
use tracer_results::record::RecordingReader;
use tracer_user::commands::replay;
use tracer_user::config::Config;
use tracer_user::pipeline::Pipeline;

pub(crate) fn run(data: &[u8]) {
    let Ok(mut reader) = RecordingReader::new("fuzz".into(), data) else { return };
    let mut pipeline = Pipeline::new(&Config::default(), reader.origin.seed, reader.origin.wall_offset, "fuzz");
    let _ = replay::frames(&mut reader, &mut pipeline);
    pipeline.finish();
    for format in [Format::Text, Format::OpenMetrics, Format::Protobuf] {
        let _ = pipeline.metrics.exposition().bytes(format);
    }
}
