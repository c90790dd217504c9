//! Where PHP of a process keeps its frames, for the walk in the kernel.
//!
//! Everything but the version and one address (the symbol `executor_globals`, which extensions need, so stripped programs have
//! it) comes from a table per version. Only builds that are not thread-safe have that symbol: there is one interpreter, and the
//! first thread of the process runs it.

use std::fs::File;

use memchr::memmem;
use tracer_common::interpreter::{FRAME_PHP, FRAME_VERSION_SHIFT, InterpreterLayout, InterpreterOutcome};

use super::elf::Program;
use super::go::image::Image;
use super::maps::{Maps, name};
use super::python_frames::{Look, refused};

const GLOBALS: &str = "executor_globals";
/// In the read-only data of every build.
const VERSION: &[u8] = b"X-Powered-By: PHP/8.";
/// Most bytes of read-only data that are searched.
const SEARCHED: usize = 16 << 20;

/// Offsets of one minor version, on x86-64.
struct Offsets {
    /// Of PHP 8.
    minor: u8,
    /// In `executor_globals`: `current_execute_data`.
    current: u64,
    /// In an op array: its file's name; the lines it is from stand behind it.
    file: u32,
}

const OFFSETS: &[Offsets] = &[
    Offsets { minor: 0, current: 488, file: 144 },
    Offsets { minor: 1, current: 488, file: 144 },
    Offsets { minor: 2, current: 488, file: 152 },
    Offsets { minor: 3, current: 488, file: 144 },
    Offsets { minor: 4, current: 488, file: 168 },
];

/// In `zend_execute_data`: the instruction, the function, the frame that called it; which call it is (`This.u1.type_info`, whose
/// bit 17, `ZEND_CALL_TOP`, says that it ends a run of the interpreter's loop).
const OPLINE: u32 = 0;
const FUNCTION: u32 = 24;
const PREVIOUS: u32 = 48;
const CALL: u32 = 42;
const TOP: u32 = 2;

/// The mapped file that contains the interpreter.
fn program(maps: &Maps) -> Option<&str> {
    match maps.named(|name| name.starts_with("libphp") && name.contains(".so")) {
        Some(mapping) => Some(mapping.path.as_str()),
        None => is_interpreter(name(&maps.exe)).then_some(maps.exe.as_str()),
    }
}

/// Programs that PHP installs, with or without a version behind their names.
const PROGRAMS: &[&str] = &["php", "php-fpm", "php-cgi"];

/// Whether a program of this name is PHP; others' names begin with it, too.
fn is_interpreter(name: &str) -> bool {
    PROGRAMS.contains(&name.trim_end_matches(|last: char| last.is_ascii_digit() || last == '.'))
}

/// Looks at a process.
pub fn look(maps: &Maps) -> Look {
    let Some(path) = program(maps) else { return Look::Nothing };
    let unsupported = Look::Known(refused(InterpreterOutcome::Unsupported, FRAME_PHP));
    if !cfg!(target_arch = "x86_64") {
        return unsupported;
    }
    let file = maps.open_by(path);
    let Some(program) = Program::read(&file, &[GLOBALS]) else { return unsupported };
    let (Some(globals), Some(bias)) = (program.address(GLOBALS), program.bias(maps.of(path))) else {
        return unsupported;
    };
    let minor = minor(name(path)).or_else(|| File::open(&file).ok().and_then(|file| searched(&file)));
    let Some(offsets) = minor.and_then(|minor| OFFSETS.iter().find(|offsets| offsets.minor == minor)) else {
        return Look::Known(refused(InterpreterOutcome::UnknownVersion, FRAME_PHP));
    };
    Look::Known(InterpreterLayout {
        state: bias.wrapping_add(globals).wrapping_add(offsets.current),
        code: FUNCTION,
        previous: PREVIOUS,
        position: OPLINE,
        owner: CALL,
        owner_mask: TOP,
        owner_entry: TOP,
        names: offsets.file,
        flags: FRAME_PHP | u32::from(offsets.minor) << FRAME_VERSION_SHIFT,
        ..InterpreterLayout::default()
    })
}

/// The minor version in a file's name: `php8.2`, `php-fpm8.2`, `libphp8.2.so`.
fn minor(name: &str) -> Option<u8> {
    let name = name.trim_end_matches(".so");
    let (program, minor) = name.rsplit_once("8.")?;
    (program == "libphp" || PROGRAMS.contains(&program)).then(|| minor.parse().ok())?
}

/// The minor version in a program's read-only data.
fn searched(file: &File) -> Option<u8> {
    let image = Image::read(file)?;
    let data = image.bytes(image.section(".rodata")?, SEARCHED)?;
    let digits = data.get(memmem::find(&data, VERSION)? + VERSION.len()..)?;
    let end = digits.iter().position(|byte| !byte.is_ascii_digit())?;
    std::str::from_utf8(digits.get(..end)?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_in_names() {
        for (name, expected) in [
            ("php8.2", Some(2)),
            ("php-fpm8.3", Some(3)),
            ("libphp8.1.so", Some(1)),
            ("php", None),
            ("php-fpm", None),
            ("php7.4", None),
            ("phpunit8.2", None),
            ("php8.2-debug", None),
        ] {
            assert_eq!(minor(name), expected, "{name}");
        }
    }

    #[test]
    fn programs_of_other_names_are_not_php() {
        for name in ["php", "php8.2", "php-fpm8.2", "php-fpm", "php-cgi", "php83"] {
            assert!(is_interpreter(name), "{name}");
        }
        for name in ["phpunit", "php_frames-f0138b344", "php-worker", "ph", "", "8.2"] {
            assert!(!is_interpreter(name), "{name}");
        }
    }

    #[test]
    fn what_is_read_lies_within_a_frame() {
        let bytes = tracer_common::interpreter::FRAME_BYTES as u32;
        assert!([OPLINE, FUNCTION, PREVIOUS].iter().all(|at| at % 8 == 0 && at + 8 <= bytes) && CALL < bytes);
    }

    #[test]
    fn programs_of_this_machine() {
        let own = File::open("/proc/self/exe").expect("this program");
        // The constant above is in this program, too.
        assert!(searched(&own).is_none_or(|minor| minor < 99));
        for path in ["/usr/bin/php8.2", "/usr/sbin/php-fpm8.2"] {
            if let Ok(file) = File::open(path) {
                assert_eq!(searched(&file), Some(2), "{path}");
            }
        }
        let maps = Maps::read(std::process::id()).expect("this process");
        assert_eq!(look(&maps), Look::Nothing);
    }
}
