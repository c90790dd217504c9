//! SQLSTATE codes (PostgreSQL's errcodes.txt, up to version 15), used as kinds of failure. A function may raise any
//! other five characters; those become [`OTHER`].

/// Codes, sorted, each of five characters and a space.
const CODES: &str = "\
    01000 01003 01004 01006 01007 01008 0100C 01P01 02000 02001 03000 08000 08001 08003 08004 08006 08007 08P01 \
    09000 0A000 0B000 0F000 0F001 0L000 0LP01 0P000 0Z000 0Z002 20000 21000 22000 22001 22002 22003 22004 22005 \
    22007 22008 22009 2200B 2200C 2200D 2200F 2200G 2200H 2200L 2200M 2200N 2200S 2200T 22010 22011 22012 22013 \
    22014 22015 22016 22018 22019 2201B 2201E 2201F 2201G 2201W 2201X 22021 22022 22023 22024 22025 22026 22027 \
    2202E 2202G 2202H 22030 22031 22032 22033 22034 22035 22036 22037 22038 22039 2203A 2203B 2203C 2203D 2203E \
    2203F 2203G 22P01 22P02 22P03 22P04 22P05 22P06 23000 23001 23502 23503 23505 23514 23P01 24000 25000 25001 \
    25002 25003 25004 25005 25006 25007 25008 25P01 25P02 25P03 26000 27000 28000 28P01 2B000 2BP01 2D000 2F000 \
    2F002 2F003 2F004 2F005 34000 38000 38001 38002 38003 38004 39000 39001 39004 39P01 39P02 39P03 3B000 3B001 \
    3D000 3F000 40000 40001 40002 40003 40P01 42000 42501 42601 42602 42611 42622 42701 42702 42703 42704 42710 \
    42712 42723 42725 42803 42804 42809 42830 42846 42883 428C9 42939 42P01 42P02 42P03 42P04 42P05 42P06 42P07 \
    42P08 42P09 42P10 42P11 42P12 42P13 42P14 42P15 42P16 42P17 42P18 42P19 42P20 42P21 42P22 44000 53000 53100 \
    53200 53300 53400 54000 54001 54011 54023 55000 55006 55P02 55P03 55P04 57000 57014 57P01 57P02 57P03 57P04 \
    57P05 58000 58030 58P01 58P02 72000 F0000 F0001 HV000 HV001 HV002 HV004 HV005 HV006 HV007 HV008 HV009 HV00A \
    HV00B HV00C HV00D HV00J HV00K HV00L HV00M HV00N HV00P HV00Q HV00R HV010 HV014 HV021 HV024 HV090 HV091 P0000 \
    P0001 P0002 P0003 P0004 XX000 XX001 XX002 \
    ";

/// An unlisted code.
pub(super) const OTHER: &str = "_OTHER";
/// A request that the server skipped because an earlier one of the same pipeline failed: it has no SQLSTATE.
pub(super) const ABORTED: &str = "pipeline_aborted";

/// The listed code equal to `bytes`.
pub(super) fn code(bytes: &[u8]) -> &'static str {
    let (mut low, mut high) = (0, CODES.len() / 6);
    while low < high {
        let middle = low.midpoint(high);
        let Some(known) = CODES.get(middle * 6..middle * 6 + 5) else { return OTHER };
        match known.as_bytes().cmp(bytes) {
            std::cmp::Ordering::Equal => return known,
            std::cmp::Ordering::Less => low = middle + 1,
            std::cmp::Ordering::Greater => high = middle,
        }
    }
    OTHER
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_found_and_nothing_else() {
        let all: Vec<&str> = CODES.split(' ').filter(|code| !code.is_empty()).collect();
        assert!(all.is_sorted() && all.iter().all(|code| code.len() == 5), "{all:?}");
        for known in &all {
            assert_eq!(code(known.as_bytes()), *known);
        }
        assert_eq!(
            [code(b"23505"), code(b"XX000"), code(b"12345"), code(b""), code(b"235055")],
            ["23505", "XX000", OTHER, OTHER, OTHER]
        );
    }
}
