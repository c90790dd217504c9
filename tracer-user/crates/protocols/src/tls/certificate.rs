//! When the certificate that a handshake shows expires (RFC 5246 §7.4.2, RFC 5280 §4.1). Its validity stands near its
//! beginning, so a captured front is enough.

use x509_parser::prelude::FromDer as _;
use x509_parser::time::ASN1Time;

use super::take;

/// Handshake message: the sender's certificates.
const CERTIFICATE: u8 = 11;
/// Tags: a sequence, a number, the version, and the two kinds of time.
const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const VERSION: u8 = 0xa0;
const TIMES: [u8; 2] = [0x17, 0x18];

/// What the front of a message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expiry {
    /// The first certificate expires at this time, seconds since 1970.
    At(i64),
    /// Not enough of it is there.
    More,
    /// It has no certificate, or none that can be read.
    Absent,
}

/// Reads the message, from its handshake header on; it may be cut.
pub(crate) fn expiry(message: &[u8]) -> Expiry {
    read(message).map_or_else(|why| why, Expiry::At)
}

fn read(message: &[u8]) -> Result<i64, Expiry> {
    let mut rest = message;
    let [kind, ..] = take(&mut rest, 4).ok_or(Expiry::More)? else { return Err(Expiry::Absent) };
    if *kind != CERTIFICATE {
        return Err(Expiry::Absent);
    }
    // Lengths of the list and of its first certificate.
    take(&mut rest, 6).ok_or(Expiry::More)?;
    // The certificate, and what is signed of it.
    enter(&mut rest, SEQUENCE)?;
    enter(&mut rest, SEQUENCE)?;
    if rest.first() == Some(&VERSION) {
        skip(&mut rest, VERSION)?;
    }
    // Serial number, algorithm, issuer.
    for tag in [INTEGER, SEQUENCE, SEQUENCE] {
        skip(&mut rest, tag)?;
    }
    enter(&mut rest, SEQUENCE)?;
    // Not before, not after.
    skip_time(&mut rest)?;
    let time = skip_time(&mut rest)?;
    ASN1Time::from_der(time).map(|(_, time)| time.timestamp()).map_err(|_| Expiry::Absent)
}

/// Takes an element's tag and length; the length.
fn enter(from: &mut &[u8], wanted: u8) -> Result<usize, Expiry> {
    let [tag, first] = *take(from, 2).and_then(|bytes| bytes.first_chunk()).ok_or(Expiry::More)?;
    if tag != wanted {
        return Err(Expiry::Absent);
    }
    match first {
        0..=0x7f => Ok(usize::from(first)),
        0x81..=0x83 => {
            let bytes = take(from, usize::from(first & 0x7f)).ok_or(Expiry::More)?;
            Ok(bytes.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)))
        }
        _ => Err(Expiry::Absent),
    }
}

fn skip(from: &mut &[u8], tag: u8) -> Result<(), Expiry> {
    let len = enter(from, tag)?;
    take(from, len).map(drop).ok_or(Expiry::More)
}

/// Takes a time, whole.
fn skip_time<'a>(from: &mut &'a [u8]) -> Result<&'a [u8], Expiry> {
    let begin = *from;
    let tag = *begin.first().ok_or(Expiry::More)?;
    if !TIMES.contains(&tag) {
        return Err(Expiry::Absent);
    }
    skip(from, tag)?;
    begin.get(..begin.len() - from.len()).ok_or(Expiry::Absent)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The message of a server with one certificate.
    pub(crate) fn message(not_after: (i32, u8, u8)) -> Vec<u8> {
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut wanted = rcgen::CertificateParams::new(vec!["shop.internal".into()]).expect("names");
        wanted.not_before = rcgen::date_time_ymd(2020, 1, 1);
        wanted.not_after = rcgen::date_time_ymd(not_after.0, not_after.1, not_after.2);
        let der = wanted.self_signed(&key).expect("a certificate").der().to_vec();
        let sized = |bytes: &[u8]| [&(bytes.len() as u32).to_be_bytes()[1..], bytes].concat();
        [&[CERTIFICATE][..], &sized(&sized(&sized(&der)))].concat()
    }

    #[test]
    fn a_front_shows_when_it_expires() {
        // Before and after 2050 the time is written in two ways.
        for (date, expected) in [((2027, 9, 19), 1_821_312_000), ((2063, 1, 2), 2_934_921_600)] {
            let message = message(date);
            assert_eq!(expiry(&message), Expiry::At(expected), "{date:?}");
            for cut in 0..message.len() {
                let found = expiry(&message[..cut]);
                assert!(found == Expiry::More || found == Expiry::At(expected), "cut at {cut}: {found:?}");
                assert!(cut < 400 || found != Expiry::More, "cut at {cut}");
            }
        }
        assert_eq!(expiry(&[12, 0, 0, 1, 0]), Expiry::Absent);
        assert_eq!(expiry(&[CERTIFICATE, 0, 0, 3, 0, 0, 0, 0, 0, 0, 4, 0]), Expiry::Absent);
    }

    proptest::proptest! {
        #[test]
        fn never_panics_on_arbitrary_input(
            bytes in proptest::collection::vec(0u8.., 0..200),
            at in 0usize..600,
            value in 0u8..,
        ) {
            let _ = expiry(&bytes);
            let mut message = message((2030, 1, 1));
            if let Some(byte) = message.get_mut(at) {
                *byte = value;
            }
            let _ = expiry(&message);
        }
    }
}
