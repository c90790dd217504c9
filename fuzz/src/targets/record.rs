//! Arbitrary bytes as a record file: header, frames, truncated anywhere.
use tracer_results::record::{FrameKind, RecordingReader};

pub(crate) fn run(data: &[u8]) {
    let Ok(mut reader) = RecordingReader::new("fuzz".into(), data) else { return };
    let mut taken = 0;
    while let Ok((kind, bytes)) = reader.next_frame() {
        taken += bytes.len();
        assert!(taken <= data.len(), "more than there is");
        if kind == FrameKind::End {
            break;
        }
    }
}
