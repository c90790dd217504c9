//! IP addresses in a certificate: `iPAddress` of its `subjectAltName` (RFC 5280 §4.2.1.6).
//!
//! The certificate has been verified already; this only locates the field. A malformed extension yields no addresses.

use std::net::IpAddr;

use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer as _;

/// Addresses of a DER certificate.
pub(super) fn addresses(certificate: &[u8]) -> Vec<IpAddr> {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return Vec::new() };
    let Ok(Some(names)) = certificate.subject_alternative_name() else { return Vec::new() };
    names.value.general_names.iter().filter_map(address).collect()
}

fn address(name: &GeneralName<'_>) -> Option<IpAddr> {
    let GeneralName::IPAddress(bytes) = name else { return None };
    match bytes.len() {
        4 => <[u8; 4]>::try_from(*bytes).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(*bytes).ok().map(IpAddr::from),
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
