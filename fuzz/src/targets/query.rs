//! Arbitrary query strings for our own server, token files and time ranges.
use tracer_http::token::Token;

pub(crate) fn run(data: &[u8]) {
    if let Some(token) = Token::parse(data) {
        assert!(token.fits(data.trim_ascii()) && !token.fits(b""));
    }
    let text = String::from_utf8_lossy(data);
    let _ = tracer_model::quantity::duration(&text);
    let _ = tracer_http::reads(&text);
}
