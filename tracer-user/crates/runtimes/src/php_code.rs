//! Functions of PHP: names, files and lines, read from the memory of a process that may say anything.
//!
//! Pure and total: every length is bounded, and a function whose words are not those that the kernel side saw gives nothing: it
//! was freed, and its memory is another's. Functions are freed at the end of each request (unless opcache keeps them), and those
//! of the next one stand at the same places, so the words are hashes of names, not pointers to them.

use tracer_common::interpreter::{FRAME_VERSION_SHIFT, InterpretedFrame, PHP_INTERNAL, fold};

use super::process_memory::{self, ProcessMemory};
use super::python_code::{Code, NAME};

/// In `zend_function`: its kind, its name, its class. In `zend_class_entry`: its name.
const KIND: u64 = 0;
const FUNCTION_NAME: u64 = 8;
const SCOPE: u64 = 16;
const CLASS_NAME: u64 = 8;
/// In `zend_string`: hash, length, text.
const HASH: u64 = 8;
const LENGTH: u64 = 16;
const TEXT: u64 = 24;
/// Kind of code that `eval` runs (`ZEND_EVAL_CODE`).
const EVAL: u8 = 4;

/// Where an op array of this minor version has its file's name.
fn file_offset(frame: &InterpretedFrame) -> Option<u64> {
    match frame.flags >> FRAME_VERSION_SHIFT {
        0 | 1 | 3 => Some(144),
        2 => Some(152),
        4 => Some(168),
        _ => None,
    }
}

fn word(memory: &mut impl ProcessMemory, at: u64) -> u64 {
    // Where it cannot be read, the kernel side has 0, too.
    process_memory::word(memory, at).unwrap_or(0)
}

/// The words that tell a function from others, as the kernel side folds them.
fn words(memory: &mut impl ProcessMemory, frame: &InterpretedFrame, file: u64) -> [u64; 4] {
    let hash = |memory: &mut _, string: u64| if string == 0 { 0 } else { word(memory, string.wrapping_add(HASH)) };
    let name = word(memory, frame.code.wrapping_add(FUNCTION_NAME));
    let scope = word(memory, frame.code.wrapping_add(SCOPE));
    let name = hash(memory, name);
    if kind(memory, frame) == Some(PHP_INTERNAL) {
        return [name, scope, 0, 0];
    }
    let path = word(memory, frame.code.wrapping_add(file));
    [name, scope, hash(memory, path), word(memory, frame.code.wrapping_add(file + 8))]
}

fn kind(memory: &mut impl ProcessMemory, frame: &InterpretedFrame) -> Option<u8> {
    let mut kind = [0];
    memory.read(frame.code.wrapping_add(KIND), &mut kind).then_some(kind[0])
}

/// Reads the function of a frame; `None` if it is not there any more.
pub fn read(memory: &mut impl ProcessMemory, frame: &InterpretedFrame) -> Option<Code> {
    let offset = file_offset(frame)?;
    let is_same = |memory: &mut _| fold(&words(memory, frame, offset)) == frame.cookie;
    if !is_same(memory) {
        return None;
    }
    let kind = kind(memory, frame)?;
    let function = word(memory, frame.code.wrapping_add(FUNCTION_NAME));
    let mut name = match function {
        0 if kind == EVAL => "{eval}".to_owned(),
        // The file itself: of the program, or of an include.
        0 => "{main}".to_owned(),
        at => string(memory, at, false)?,
    };
    let scope = word(memory, frame.code.wrapping_add(SCOPE));
    if function != 0 && scope != 0 {
        let class = word(memory, scope.wrapping_add(CLASS_NAME));
        name = format!("{}::{name}", string(memory, class, false)?);
    }
    let code = if kind == PHP_INTERNAL {
        Code { name, file: String::new(), first: 0, table: Vec::new() }
    } else {
        let path = word(memory, frame.code.wrapping_add(offset));
        let lines = word(memory, frame.code.wrapping_add(offset + 8));
        Code { name, file: string(memory, path, true)?, first: lines as u32, table: Vec::new() }
    };
    // Freed meanwhile?
    is_same(memory).then_some(code)
}

/// The hash that PHP keeps of a string (`zend_inline_hash_func`, `Zend/zend_string.h`).
pub fn hash_of(text: &[u8]) -> u64 {
    text.iter().fold(5381u64, |hash, byte| hash.wrapping_mul(33).wrapping_add(u64::from(*byte))) | 1 << 63
}

/// A string; its beginning, or its end, where it is long.
fn string(memory: &mut impl ProcessMemory, at: u64, end: bool) -> Option<String> {
    let mut head = [0; 8];
    if at == 0 || !memory.read(at.checked_add(LENGTH)?, &mut head) {
        return None;
    }
    let length = u64::from_ne_bytes(head);
    // No name has a million characters.
    if length > 1 << 20 {
        return None;
    }
    let count = length.min(NAME as u64);
    let skipped = if end { length - count } else { 0 };
    let mut raw = vec![0; count as usize];
    if !memory.read(at.checked_add(TEXT)?.checked_add(skipped)?, &mut raw) {
        return None;
    }
    if count == length && word(memory, at.checked_add(HASH)?) != hash_of(&raw) {
        // The memory is another's.
        return None;
    }
    // Names of anonymous classes go on behind a zero.
    let text = raw.split(|byte| *byte == 0).next().unwrap_or_default();
    Some(String::from_utf8_lossy(text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_common::interpreter::FRAME_PHP;

    /// Memory from 0x1000 on.
    struct Words(Vec<u8>);

    impl ProcessMemory for Words {
        fn read(&mut self, at: u64, into: &mut [u8]) -> bool {
            let from = usize::try_from(at).ok().and_then(|at| at.checked_sub(0x1000));
            let found = from.and_then(|from| self.0.get(from..from.checked_add(into.len())?));
            found.inspect(|found| into.copy_from_slice(found)).is_some()
        }
    }

    impl Words {
        fn put(&mut self, at: u64, bytes: &[u8]) {
            let at = (at - 0x1000) as usize;
            self.0[at..at + bytes.len()].copy_from_slice(bytes);
        }

        fn string(&mut self, at: u64, text: &str) {
            self.put(at + HASH, &hash_of(text.as_bytes()).to_ne_bytes());
            self.put(at + LENGTH, &(text.len() as u64).to_ne_bytes());
            self.put(at + TEXT, text.as_bytes());
        }
    }

    const CODE: u64 = 0x1000;
    const FILE: &str = "/srv/shop/key.php";

    fn file() -> u64 {
        hash_of(FILE.as_bytes())
    }

    fn memory(kind: u8) -> Words {
        let mut memory = Words(vec![0; 0x1000]);
        memory.put(CODE, &[kind]);
        memory.put(CODE + 8, &0x1200u64.to_ne_bytes());
        memory.put(CODE + 16, &0x1300u64.to_ne_bytes());
        memory.put(CODE + 152, &0x1400u64.to_ne_bytes());
        memory.put(CODE + 160, &[7, 0, 0, 0, 9, 0, 0, 0]);
        memory.string(0x1200, "of");
        memory.put(0x1300 + 8, &0x1500u64.to_ne_bytes());
        memory.string(0x1400, FILE);
        memory.string(0x1500, "Key\0/srv/shop/key.php:3$0");
        memory
    }

    fn frame(words: [u64; 4]) -> InterpretedFrame {
        let flags = FRAME_PHP | 2 << FRAME_VERSION_SHIFT;
        InterpretedFrame { code: CODE, cookie: fold(&words), at: 0, flags }
    }

    #[test]
    fn hashes_have_their_highest_bit_set() {
        // 5381, and 33 times that and 97 more.
        assert_eq!((hash_of(b""), hash_of(b"a")), (0x8000_0000_0000_1505, 0x8000_0000_0002_b606));
    }

    #[test]
    fn functions_and_methods_have_names() {
        let user = frame([hash_of(b"of"), 0x1300, file(), 7 | 9 << 32]);
        let code = read(&mut memory(2), &user).expect("a method");
        assert_eq!((&*code.name, &*code.file, code.first), ("Key::of", "/srv/shop/key.php", 7));
        let internal =
            read(&mut memory(PHP_INTERNAL), &frame([hash_of(b"of"), 0x1300, 0, 0])).expect("a method of PHP's own");
        assert_eq!((&*internal.name, &*internal.file), ("Key::of", ""));
        let mut file = memory(2);
        file.put(CODE + 8, &[0; 16]);
        assert_eq!(
            read(&mut file, &frame([0, 0, self::file(), 7 | 9 << 32])).map(|code| code.name),
            Some("{main}".into())
        );
        file.put(CODE, &[EVAL]);
        assert_eq!(
            read(&mut file, &frame([0, 0, self::file(), 7 | 9 << 32])).map(|code| code.name),
            Some("{eval}".into())
        );
    }

    #[test]
    fn another_function_at_the_same_place_is_not_taken_for_it() {
        let user = frame([hash_of(b"of"), 0x1300, file(), 7 | 9 << 32]);
        let mut other = memory(2);
        other.string(0x1200, "by");
        assert_eq!(read(&mut other, &user), None);
        // The same hash, as of a string that was freed, and the text of another.
        let mut text = memory(2);
        text.put(0x1200 + TEXT, b"by");
        assert_eq!(read(&mut text, &user), None);
        let mut lies = memory(2);
        lies.put(0x1200 + LENGTH, &u64::MAX.to_ne_bytes());
        assert_eq!(read(&mut lies, &user), None);
        assert_eq!(read(&mut Words(Vec::new()), &user), None);
        assert_eq!(
            read(&mut memory(2), &InterpretedFrame { flags: FRAME_PHP | 9 << FRAME_VERSION_SHIFT, ..user }),
            None
        );
    }
}
