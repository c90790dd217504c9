//! Whether a segment of a path is a word of the application or a secret: by known prefixes, by its alphabet, and by how likely its
//! letters follow one another in words that people make up.
//!
//! A *token* is one whatever else is known of it. What is only *no plain word* may still be an application's abbreviation: it
//! has to be seen more often than a word before it is shown (`tree.rs`).

/// How credentials of well-known services begin, and the least that follows.
const PREFIXES: &[(&str, usize)] = &[
    ("eyJ", 1),
    ("AKIA", 4),
    ("ASIA", 4),
    ("AIza", 4),
    ("ya29.", 1),
    ("ghp_", 1),
    ("gho_", 1),
    ("ghu_", 1),
    ("ghs_", 1),
    ("ghr_", 1),
    ("github_pat_", 1),
    ("glpat-", 1),
    ("gldt-", 1),
    ("xoxa-", 1),
    ("xoxb-", 1),
    ("xoxp-", 1),
    ("xoxr-", 1),
    ("xoxs-", 1),
    ("xapp-", 1),
    ("sk_live_", 1),
    ("sk_test_", 1),
    ("rk_live_", 1),
    ("pk_live_", 1),
    ("pk_test_", 1),
    ("whsec_", 1),
    ("sk-", 8),
    ("SG.", 4),
    ("npm_", 8),
    ("pypi-", 8),
    ("hf_", 8),
    ("dop_v1_", 1),
    ("shpat_", 1),
    ("hvs.", 4),
    ("Bearer", 1),
];
/// Letters in a row from which on their order says something.
const LETTERS: usize = 6;
/// Letters in a row from which on an order that is in no word makes a token.
const TOKEN_LETTERS: usize = 10;
/// A word is at least this likely: the mean of [`LIKELY`] over its pairs of letters, in hundredths. Of names of programs,
/// functions and routes 8 % are less; of random letters 96 % (eight of them) to 99.7 % (twenty).
const WORD: i32 = 20;
/// And a token at most this: random letters are on average 190 below zero, no word of ten letters is.
const TOKEN: i32 = -100;

/// How much more often than by chance one letter (row) is followed by another (column) in words, as a power of two: the digit less
/// four. Counted in the manuals, source files and documentation of a Debian system.
const LIKELY: [&[u8; 26]; 26] = [
    b"35653352514757150767543242",
    b"53335320521521420442400131",
    b"63436316405531630546420020",
    b"54347321611322521442422020",
    b"64675542413657353776354542",
    b"43334510500411510433300020",
    b"41226233400424420542310000",
    b"50116000501222510323301020",
    b"55655551113657650566250304",
    b"30003000200000200010200000",
    b"41115111400211310142201010",
    b"62347221702622620144420051",
    b"64226110501341550142400020",
    b"62666572614324530267431021",
    b"34553442313557550755544221",
    b"51326224502522540645401030",
    b"00000000000100000000400000",
    b"73457341704454630565432041",
    b"52537235603433552267522041",
    b"62437325702432630655412242",
    b"44434330402546240555000201",
    b"40106000500010310021000000",
    b"40214002400202300330000000",
    b"20313100300120030014000200",
    b"31212110200233240143100000",
    b"30004000300000200000000001",
];

/// Which bytes a segment is made of: what most segments are decided by, counted in one pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct ByteKinds {
    pub(super) digits: usize,
    pub(super) upper: usize,
    pub(super) lower: usize,
    any: u8,
    all: u8,
}

impl ByteKinds {
    const DIGIT: u8 = 1;
    const UPPER: u8 = 2;
    const LOWER: u8 = 4;
    /// Hexadecimal digits.
    const HEX: u8 = 8;
    /// Digits and what stands between them in numbers, dates and times.
    const NUMBER: u8 = 16;
    /// What words are made of, and what joins them.
    const WORD: u8 = 32;
    const AT: u8 = 64;
    const PERCENT: u8 = 128;
    /// The kinds of each byte.
    const OF: [u8; 256] = {
        let mut of = [0; 256];
        let mut byte = 0;
        while byte < 256 {
            of[byte] = Self::kinds_of(byte as u8);
            byte += 1;
        }
        of
    };

    const fn kinds_of(byte: u8) -> u8 {
        let mut kinds = 0;
        if byte.is_ascii_digit() {
            kinds |= Self::DIGIT;
        }
        if byte.is_ascii_uppercase() {
            kinds |= Self::UPPER;
        }
        if byte.is_ascii_lowercase() {
            kinds |= Self::LOWER;
        }
        if byte.is_ascii_hexdigit() {
            kinds |= Self::HEX;
        }
        if byte.is_ascii_digit() || matches!(byte, b'-' | b'.' | b',' | b':' | b'+' | b'_') {
            kinds |= Self::NUMBER;
        }
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~' | b':') {
            kinds |= Self::WORD;
        }
        if byte == b'@' {
            kinds |= Self::AT;
        }
        if byte == b'%' {
            kinds |= Self::PERCENT;
        }
        kinds
    }

    pub(super) fn of(segment: &str) -> Self {
        let mut kinds = Self { digits: 0, upper: 0, lower: 0, any: 0, all: u8::MAX };
        for byte in segment.bytes() {
            let of = Self::OF[usize::from(byte)];
            kinds.any |= of;
            kinds.all &= of;
            kinds.digits += usize::from(of & Self::DIGIT != 0);
            kinds.upper += usize::from(of & Self::UPPER != 0);
            kinds.lower += usize::from(of & Self::LOWER != 0);
        }
        kinds
    }

    pub(super) fn letters(self) -> usize {
        self.upper + self.lower
    }

    /// Whether it has an `@`, as it is or encoded, as far as the kinds say.
    pub(super) fn may_have_at(self) -> bool {
        self.any & (Self::AT | Self::PERCENT) != 0
    }

    pub(super) fn is_hex(self) -> bool {
        self.all & Self::HEX != 0
    }

    /// Whether it is made of digits and what stands between them in numbers.
    pub(super) fn is_number(self) -> bool {
        self.all & Self::NUMBER != 0
    }

    fn is_of_words(self) -> bool {
        self.all & Self::WORD != 0
    }
}

/// Whether a segment is a secret whatever else is known.
pub(super) fn is_token(segment: &str, kinds: ByteKinds) -> bool {
    has_known_prefix(segment)
        || !kinds.is_of_words()
        // Letters and digits take turns only where there are two digits, and only many letters have an order.
        || (kinds.digits >= 2 && has_mixed_run(segment.as_bytes()))
        || (kinds.letters() >= TOKEN_LETTERS
            && runs(segment, u8::is_ascii_alphabetic).any(|run| run.len() >= TOKEN_LETTERS && likeliness(run) < TOKEN))
}

/// Which of [`PREFIXES`] begin with a byte: a bit for each.
const BEGINS: [u64; 256] = {
    let mut begins = [0; 256];
    let mut at = 0;
    while at < PREFIXES.len() {
        begins[PREFIXES[at].0.as_bytes()[0] as usize] |= 1 << at;
        at += 1;
    }
    begins
};

/// Whether a segment begins as the credentials of well-known services do.
pub fn has_known_prefix(segment: &str) -> bool {
    let [first, second, ..] = segment.as_bytes() else { return false };
    let mut possible = BEGINS[usize::from(*first)];
    while let Some((prefix, more)) = PREFIXES.get(possible.trailing_zeros() as usize) {
        possible &= possible - 1;
        // Most segments are ruled out by their first bytes.
        if prefix.as_bytes().get(1) == Some(second)
            && segment.strip_prefix(prefix).is_some_and(|rest| rest.len() >= *more)
        {
            return true;
        }
    }
    false
}

/// Whether a segment looks like words.
pub(super) fn is_word(segment: &str) -> bool {
    let letters = runs(segment, u8::is_ascii_alphabetic);
    let likely = letters.into_iter().all(|run| run.len() < LETTERS || likeliness(run) >= WORD);
    // Digits in the midst of a long word stand for letters.
    let spelled =
        runs(segment, u8::is_ascii_alphanumeric).all(|run| run.len() < 8 || digit_groups(run) == 0 || is_version(run));
    likely && spelled
}

/// The longest fragments of a text whose bytes are all of a kind.
fn runs(text: &str, kind: impl Fn(&u8) -> bool) -> impl Iterator<Item = &[u8]> {
    text.as_bytes().split(move |byte| !kind(byte)).filter(|run| !run.is_empty())
}

/// Whether letters and digits take turns as in no word in any of the longest fragments of letters and digits.
fn has_mixed_run(segment: &[u8]) -> bool {
    let is_mixed = |begin: usize, end: usize, groups: usize| {
        end - begin >= 6 && groups >= 2 && !segment.get(begin..end).is_some_and(is_version)
    };
    // As `digit_groups` counts, of all fragments in one pass.
    let (mut begin, mut groups, mut letter_before, mut open) = (0, 0, false, false);
    for (at, byte) in segment.iter().enumerate() {
        let kinds = ByteKinds::OF[usize::from(*byte)];
        if kinds & ByteKinds::DIGIT != 0 {
            open |= letter_before;
            letter_before = false;
        } else if kinds & (ByteKinds::UPPER | ByteKinds::LOWER) != 0 {
            groups += usize::from(open);
            open = false;
            letter_before = true;
        } else {
            if is_mixed(begin, at, groups) {
                return true;
            }
            (begin, groups, letter_before, open) = (at + 1, 0, false, false);
        }
    }
    is_mixed(begin, segment.len(), groups)
}

/// `v1beta1`, `v1p1beta1`.
fn is_version(run: &[u8]) -> bool {
    let Some(rest) = run.strip_prefix(b"v").filter(|rest| rest.first().is_some_and(u8::is_ascii_digit)) else {
        return false;
    };
    let mut words = rest.split(u8::is_ascii_digit).filter(|word| !word.is_empty());
    words.all(|word| matches!(word, b"alpha" | b"beta" | b"rc" | b"p"))
}

/// Groups of digits with a letter before and after them.
fn digit_groups(run: &[u8]) -> usize {
    let (mut groups, mut letter_before, mut open) = (0, false, false);
    for byte in run {
        if byte.is_ascii_digit() {
            open |= letter_before;
            letter_before = false;
        } else {
            groups += usize::from(std::mem::take(&mut open));
            letter_before = true;
        }
    }
    groups
}

/// The mean of [`LIKELY`] over the pairs of letters, in hundredths.
fn likeliness(letters: &[u8]) -> i32 {
    let index = |letter: u8| usize::from(letter.to_ascii_lowercase().wrapping_sub(b'a'));
    let of = |pair: &[u8]| -> Option<i32> {
        let (first, second) = (index(*pair.first()?), index(*pair.get(1)?));
        Some(i32::from(*LIKELY.get(first)?.get(second)?) - i32::from(b'4'))
    };
    let sum: i32 = letters.windows(2).filter_map(of).sum();
    let pairs = i32::try_from(letters.len().saturating_sub(1).max(1)).unwrap_or(i32::MAX);
    sum.saturating_mul(100) / pairs
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn is_token(segment: &str) -> bool {
        super::is_token(segment, ByteKinds::of(segment))
    }

    #[test]
    fn words_of_applications_are_words() {
        for word in [
            "users",
            "orders",
            "checkout",
            "healthz",
            "metrics",
            "well-known",
            "wp-json",
            "getUserByName",
            "order-history",
            "v1",
            "v2.1",
            "v2alpha1",
            "v1p1beta1",
            "oauth2",
            "2fa",
            "i18n",
            "k8s",
            "inventory",
            "recommendations",
            "favicon",
            "favicon.ico",
            "index.html",
            "product_images",
            "sum",
            "api",
            "swagger-ui",
            "autocomplete",
            "payments",
            "subscription",
            "openapi",
        ] {
            assert!(is_word(word) && !is_token(word), "{word}");
        }
        // These are shown when they have been seen often enough.
        for word in ["graphql", "xmlrpc", "jquery", "oauth2callback"] {
            assert!(!is_token(word), "{word}");
        }
    }

    #[test]
    fn secrets_are_tokens() {
        for secret in [
            "xwcxpchuujua",
            "AKIAIOSFODNN7EXAMPLE",
            "AKIAABCD",
            "Tr0ub4dor&6",
            "Tr0ub4dor",
            "eyJhbGciOiJub25lIn0.e30.",
            "ghp_abcdefgh",
            "sk_live_abc",
            "a=b",
            "it's",
            "{id}",
            "a b",
            "a\u{1}b",
        ] {
            assert!(is_token(secret), "{secret}");
        }
    }

    proptest! {
        #[test]
        fn few_random_letters_are_words(all in proptest::collection::vec("[a-z]{12}", 500)) {
            let words = all.iter().filter(|letters| is_word(letters)).count();
            prop_assert!(words < 40, "{}", words);
        }

        #[test]
        fn never_panics_on_arbitrary_input(text in "\\PC{0,40}") {
            let _ = (is_token(&text), is_word(&text));
        }

        #[test]
        fn one_pass_counts_what_several_would(text in "[ -~é]{0,30}|[0-9a-fA-F]{1,40}|[0-9.:_+,-]{1,12}") {
            let (kinds, bytes) = (ByteKinds::of(&text), text.as_bytes());
            let count = |is: fn(&u8) -> bool| bytes.iter().filter(|byte| is(byte)).count();
            prop_assert_eq!(kinds.digits, count(u8::is_ascii_digit));
            prop_assert_eq!(kinds.letters(), count(u8::is_ascii_alphabetic));
            prop_assert_eq!(kinds.upper, count(u8::is_ascii_uppercase));
            prop_assert_eq!(kinds.is_hex(), bytes.iter().all(u8::is_ascii_hexdigit));
            prop_assert!(kinds.may_have_at() || !text.contains('@') && !text.contains("%40"));
            let of_number = |byte: &u8| byte.is_ascii_digit() || b"-.,:+_".contains(byte);
            prop_assert_eq!(kinds.is_number(), bytes.iter().all(of_number));
        }

        #[test]
        fn one_pass_finds_mixed_runs_as_one_by_one(text in "[a-z0-9é-]{0,24}|v[0-9]{1,3}(alpha|beta|rc|p)?[0-9]{1,2}[a-z]?[0-9]?") {
            let mixed = |run: &[u8]| run.len() >= 6 && digit_groups(run) >= 2 && !is_version(run);
            let expected = runs(&text, u8::is_ascii_alphanumeric).any(mixed);
            prop_assert_eq!(has_mixed_run(text.as_bytes()), expected, "{}", text);
        }

        #[test]
        fn known_prefixes_are_found_by_their_first_bytes(at in 0..PREFIXES.len(), cut in 0usize..16, rest in "[a-z]{0,9}") {
            let prefix = PREFIXES[at].0;
            let text = format!("{}{rest}", &prefix[..cut.min(prefix.len())]);
            let naive = PREFIXES.iter().any(|(prefix, more)| text.strip_prefix(prefix).is_some_and(|rest| rest.len() >= *more));
            prop_assert_eq!(has_known_prefix(&text), naive, "{}", text);
        }
    }
}
