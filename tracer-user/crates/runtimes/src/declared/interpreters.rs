//! Programs that run other programs: a function of the one that is run has no code of its own that a probe could be put on.
//! This says which language a program runs, and exactly why its functions cannot be declared.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// A language that an interpreter runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// CPython.
    Python,
    /// Node.js.
    JavaScript,
    /// A JVM.
    Java,
    /// The command line, FPM or a module.
    Php,
    /// MRI.
    Ruby,
    /// Perl 5.
    Perl,
}

/// Functions that only the program, or the library, that runs a language defines or calls.
const MARKS: [(&str, Language); 9] = [
    ("Py_BytesMain", Language::Python),
    ("Py_RunMain", Language::Python),
    ("_ZN4node5StartEiPPc", Language::JavaScript),
    ("JLI_Launch", Language::Java),
    ("JNI_CreateJavaVM", Language::Java),
    ("php_module_startup", Language::Php),
    ("ruby_run_node", Language::Ruby),
    ("ruby_options", Language::Ruby),
    ("perl_run", Language::Perl),
];

impl Language {
    /// The language of a program with these functions, its own and those it calls in libraries.
    pub(super) fn of<'a>(functions: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        let marked = |name: &str| MARKS.iter().find(|(mark, _)| *mark == name).map(|(_, language)| *language);
        functions.into_iter().find_map(marked)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Python => "Python",
            Self::JavaScript => "JavaScript",
            Self::Java => "Java",
            Self::Php => "PHP",
            Self::Ruby => "Ruby",
            Self::Perl => "Perl",
        }
    }

    /// Why its functions have no place for a probe.
    fn why(self) -> &'static str {
        match self {
            Self::Python => {
                "one C function of the interpreter, _PyEval_EvalFrameDefault, runs all of them from bytecode, and its calls of \
                 itself need not be calls of C functions"
            }
            Self::JavaScript => {
                "V8 interprets bytecode, then compiles functions while they run, and moves and discards that code"
            }
            Self::Java => {
                "the JVM interprets bytecode, then compiles methods while they run, inlines them, and discards that code"
            }
            Self::Php => "one C function of the engine, execute_ex, runs all of them from opcodes",
            Self::Ruby => "one C function of the virtual machine, vm_exec_core, runs all of them from bytecode",
            Self::Perl => "one C function, Perl_runops_standard, runs all of them as a tree of operations",
        }
    }

    /// What can be declared or looked at in its place.
    fn instead(self) -> &'static str {
        match self {
            Self::Python => {
                "declare a function of the interpreter or of an extension module (.so); flame graphs have Python's functions (the \
                 USDT probe function__entry is hit by all of them)"
            }
            Self::Java => "declare a native method's function in its library (.so)",
            Self::Php => {
                "declare a function of the interpreter or of an extension (.so), or requests by the USDT probes \
                 request__startup and request__shutdown; flame graphs have PHP's functions"
            }
            Self::JavaScript | Self::Ruby | Self::Perl => {
                "declare a function of the interpreter or of an extension (.so)"
            }
        }
    }
}

impl fmt::Display for Language {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "functions of {} have no machine code of their own: {}; {}", self.name(), self.why(), self.instead())
    }
}

/// The interpreter that a script's first line names, bounded; `None` if the file is no script.
pub(super) fn of_script(file: &File) -> Option<String> {
    let mut bytes = [0; 128];
    let count = file.read_at(&mut bytes, 0).ok()?;
    let line = bytes.get(..count)?.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let line: String = String::from_utf8_lossy(line).chars().filter(|c| !c.is_control()).collect();
    Some(line.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn languages_show_by_their_functions() {
        assert_eq!(Language::of(["main", "Py_BytesMain"]), Some(Language::Python));
        assert_eq!(Language::of(["main", "JLI_Launch"]), Some(Language::Java));
        assert_eq!(Language::of(["main", "Py_BytesMain2"]), None);
        let text = Language::Php.to_string();
        assert!(text.starts_with("functions of PHP have no machine code of their own: one C function"), "{text}");
    }

    #[test]
    fn scripts_name_their_interpreter() {
        let of = |bytes: &[u8]| {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(bytes).unwrap();
            of_script(&file)
        };
        assert_eq!(of(b"#! /usr/bin/env python3\nimport os\n").as_deref(), Some("/usr/bin/env python3"));
        assert_eq!(of(b"#!").as_deref(), Some(""));
        assert_eq!(of(&[b"#!".as_slice(), &[b'x'; 4096]].concat()).map(|line| line.len()), Some(126));
        assert!(of(b"\x7fELF").is_none() && of(b"").is_none());
    }
}
