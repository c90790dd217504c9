//! GnuTLS 3: its functions are watched at their entries and returns. `gnutls_record_send` leads to
//! `gnutls_record_send2`, which is watched alone where there is one.

use std::fs::File;
use std::path::Path;

use tracer_common::runtime::tls;

use super::functions::LibraryReader;
use super::{Refusal, Sites};

const HANDSHAKE: &str = "gnutls_handshake";
const RECEIVE: &str = "gnutls_record_recv";
/// The better one first.
const SEND: [&str; 2] = ["gnutls_record_send2", "gnutls_record_send"];
const FORGET: &str = "gnutls_deinit";

/// The places in the library's file.
pub(super) fn inspect(path: &Path, file: &File) -> Result<Sites, Refusal> {
    let wanted = [HANDSHAKE, RECEIVE, SEND[0], SEND[1], FORGET];
    let mut reader = LibraryReader::new(path, file, &wanted, &[HANDSHAKE, RECEIVE, SEND[1], FORGET])?;
    reader.forgets(&[FORGET])?;
    reader.call(HANDSHAKE, 1, tls::HANDSHAKE)?;
    reader.call(RECEIVE, 3, tls::READ)?;
    let send = SEND.into_iter().find(|name| reader.program.address(name).is_some()).ok_or(Refusal::NoFunctions)?;
    reader.call(send, 3, tls::WRITE)?;
    Ok(reader.found)
}
