//! Rules at each instruction of code as the compilers write it.

use super::*;

/// What both compilers write around a body of two instructions: the frame is 48 bytes.
const METHOD: &[u8] = &[
    0x89, 0x84, 0x24, 0x00, 0xc0, 0xfe, 0xff, // 0: mov %eax,-0x14000(%rsp)
    0x55, // 7: push %rbp
    0x48, 0x83, 0xec, 0x20, // 8: sub $0x20,%rsp
    0x90, 0x90, // 12: the body
    0x48, 0x83, 0xc4, 0x20, // 14: add $0x20,%rsp
    0x5d, // 18: pop %rbp
    0x49, 0x3b, 0xa7, 0x38, 0x03, 0x00, 0x00, // 19: cmp 0x338(%r15),%rsp
    0x0f, 0x87, 0x00, 0x00, 0x00, 0x00, // 26: ja
    0xc3, // 32: ret
    0x90, 0x90, // 33: more of the body
];
const AT: u64 = 0x7f00_0000_1000;

fn blob(kind: BlobKind, frame: u32, code: &[u8]) -> CodeBlob {
    CodeBlob { at: AT - 64, kind, code: AT..AT + code.len() as u64, method: 0, frame }
}

/// The rule at each byte of a blob's code, found as the kernel side finds it.
fn rules_of(blob: &CodeBlob, code: &[u8]) -> Vec<Rule> {
    let mut all = Vec::new();
    rows(blob, code, |at, rule| all.push((at, rule)));
    let mut rules = Rules::new();
    let table = table(&(AT - 4096..AT + 8192), all, &mut rules);
    let found = |at: u64| table.rule(at).map(|number| rules.all()[usize::from(number)]).expect("a rule");
    assert_eq!((found(AT - 1), found(blob.code.end)), (UNKNOWN_CODE, UNKNOWN_CODE));
    blob.code.clone().map(found).collect()
}

#[test]
fn frames_are_known_from_the_first_instruction_to_the_return() {
    let found = rules_of(&blob(BlobKind::Method, 48, METHOD), METHOD);
    let mut wanted = vec![frame(8, false); 8];
    wanted.extend([frame(16, true); 4]);
    wanted.extend([frame(48, true); 6]);
    wanted.push(frame(16, true));
    wanted.extend([frame(8, false); 14]);
    wanted.extend([frame(48, true); 2]);
    assert_eq!(found, wanted);
}

#[test]
fn code_that_makes_no_frame_as_it_should_has_the_frame_all_along() {
    assert_eq!(rules_of(&blob(BlobKind::Method, 4096, METHOD), METHOD)[20], frame(4096, true));
    // What cannot be read.
    assert_eq!(rules_of(&blob(BlobKind::Runtime, 48, METHOD), &[])[9], frame(48, true));
}

#[test]
fn other_code_is_walked_in_other_ways() {
    let sender = Rule { cfa: CFA_SENDER, ..NONE };
    for (kind, size, wanted) in [
        (BlobKind::Interpreter, 0, sender),
        (BlobKind::Adapter, 0, frame(8, false)),
        (BlobKind::Runtime, 0, NONE),
        (BlobKind::Method, 8, NONE),
    ] {
        assert!(rules_of(&blob(kind, size, METHOD), METHOD).iter().all(|rule| *rule == wanted), "{kind:?}");
    }
}

proptest::proptest! {
    #[test]
    fn any_code_does_no_harm(
        code in proptest::collection::vec(proptest::num::u8::ANY, 0..400),
        begins in proptest::bool::ANY,
        size in 0u32..1 << 20,
    ) {
        let code = if begins { [METHOD, &code].concat() } else { code };
        if !code.is_empty() {
            rules_of(&blob(BlobKind::Method, size, &code), &code);
        }
    }
}
