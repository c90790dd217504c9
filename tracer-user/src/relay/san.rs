//! IP addresses in a certificate: `iPAddress` of its `subjectAltName` (RFC 5280 §4.2.1.6).
//!
//! The certificate has been verified already; this only locates the field. A malformed extension yields no addresses.

use std::net::IpAddr;

const SEQUENCE: u8 = 0x30;
const OCTETS: u8 = 0x04;
const BOOLEAN: u8 = 0x01;
const OID: u8 = 0x06;
/// `extensions [3]` of `TBSCertificate`.
const EXTENSIONS: u8 = 0xa3;
/// `iPAddress [7]` of `GeneralName`.
const ADDRESS: u8 = 0x87;
/// 2.5.29.17.
const SUBJECT_ALT_NAME: [u8; 3] = [0x55, 0x1d, 0x11];

/// The first DER element: its tag, its content, and the bytes after it.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&[tag, first], rest) = bytes.split_first_chunk()?;
    let (len, rest) = match usize::from(first) {
        short @ 0..=0x7f => (short, rest),
        // Certificates have no longer elements.
        long @ 0x81..=0x83 => {
            let (digits, rest) = rest.split_at_checked(long - 0x80)?;
            (digits.iter().fold(0, |len, digit| len << 8 | usize::from(*digit)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(len)?;
    Some((tag, content, rest))
}

/// The content of the first element, if it has this tag.
fn of(tag: u8, bytes: &[u8]) -> Option<&[u8]> {
    element(bytes).filter(|(found, ..)| *found == tag).map(|(_, content, _)| content)
}

/// All complete elements.
fn elements(mut bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let (tag, content, rest) = element(bytes)?;
        bytes = rest;
        Some((tag, content))
    })
}

/// Addresses of a DER certificate.
pub(super) fn addresses(certificate: &[u8]) -> Vec<IpAddr> {
    names(certificate).map(|names| elements(names).filter_map(address).collect()).unwrap_or_default()
}

fn names(certificate: &[u8]) -> Option<&[u8]> {
    let body = of(SEQUENCE, of(SEQUENCE, certificate)?)?;
    let (_, extensions) = elements(body).find(|(tag, _)| *tag == EXTENSIONS)?;
    let found = elements(of(SEQUENCE, extensions)?).find_map(|(_, extension)| {
        let (_, id, rest) = element(extension).filter(|(tag, ..)| *tag == OID)?;
        if id != SUBJECT_ALT_NAME {
            return None;
        }
        // The optional `critical` flag.
        let rest = element(rest).filter(|(tag, ..)| *tag == BOOLEAN).map_or(rest, |(.., rest)| rest);
        of(OCTETS, rest)
    })?;
    of(SEQUENCE, found)
}

fn address((tag, content): (u8, &[u8])) -> Option<IpAddr> {
    if tag != ADDRESS {
        return None;
    }
    match content.len() {
        4 => <[u8; 4]>::try_from(content).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(content).ok().map(IpAddr::from),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rcgen::{CertificateParams, KeyPair};

    fn certificate(names: &[&str]) -> Vec<u8> {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let params = CertificateParams::new(names).unwrap();
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn addresses_are_found_among_names() {
        let found = addresses(&certificate(&["db1.internal", "10.0.0.5", "fd00::5", "shop"]));
        assert_eq!(found, ["10.0.0.5".parse::<IpAddr>().unwrap(), "fd00::5".parse().unwrap()]);
        assert_eq!(addresses(&certificate(&["db1.internal"])), Vec::<IpAddr>::new());
        assert_eq!(addresses(&certificate(&[])), Vec::<IpAddr>::new());
    }

    #[test]
    fn what_is_cut_short_has_none() {
        let whole = certificate(&["10.0.0.5"]);
        for len in 0..whole.len() {
            assert_eq!(addresses(&whole[..len]), Vec::<IpAddr>::new(), "{len}");
        }
    }

    proptest! {
        #[test]
        fn never_panics_on_arbitrary_input(bytes in proptest::collection::vec(any::<u8>(), 0..300), at in any::<usize>()) {
            let _ = addresses(&bytes);
            let mut changed = certificate(&["10.0.0.5"]);
            for (n, byte) in bytes.iter().take(4).enumerate() {
                let at = (at / (n + 1)) % changed.len();
                changed[at] = *byte;
            }
            let _ = addresses(&changed);
        }
    }
}
