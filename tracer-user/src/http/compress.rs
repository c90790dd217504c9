//! Compression of answers.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;

/// Whether a client with this `Accept-Encoding` takes gzip.
pub(super) fn takes_gzip(accept: &str) -> bool {
    let quality = |coding: &str| -> Option<f32> {
        accept.split(',').find_map(|range| {
            let mut parts = range.split(';').map(str::trim);
            if !parts.next()?.eq_ignore_ascii_case(coding) {
                return None;
            }
            let given = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
            Some(given.map_or(1.0, |given| given.trim().parse().unwrap_or(0.0)))
        })
    };
    quality("gzip").or_else(|| quality("*")).is_some_and(|quality| quality > 0.0)
}

/// The bytes as a gzip file: quickly, because a scrape waits.
///
/// # Errors
///
/// Never in practice: the writer is memory.
pub(super) fn gzip(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(bytes.len() / 8), Compression::fast());
    encoder.write_all(bytes)?;
    encoder.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_taken_where_it_is_accepted() {
        for (accept, takes) in [
            ("", false),
            ("gzip", true),
            ("deflate, GZIP;q=0.5", true),
            ("gzip;q=0", false),
            ("gzip;q=0, *", false),
            ("*;q=0.1", true),
            ("identity", false),
            ("xgzip", false),
            ("gzip;q=x", false),
        ] {
            assert_eq!(takes_gzip(accept), takes, "{accept}");
        }
    }

    #[test]
    fn what_is_packed_can_be_unpacked() {
        let text = "tracer_series 1\n".repeat(1000);
        let packed = gzip(text.as_bytes()).unwrap();
        assert!(packed.len() * 20 < text.len());
        let mut unpacked = String::new();
        std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(&packed[..]), &mut unpacked).unwrap();
        assert_eq!(unpacked, text);
    }
}
