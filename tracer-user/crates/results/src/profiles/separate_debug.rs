//! Names from a debug file that its program does not name: found by build id alone. The library that reads debug information
//! follows links in programs only, and stripped programs often have none.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use blazesym::helper::ElfResolver;
use blazesym::symbolize::{
    FindSymOpts, ProcessMemberInfo, ProcessMemberType, Reason, Resolve, ResolvedSym, Symbolize, TranslateFileOffset,
};
use blazesym::{Addr, Result};

use super::debug_info::{self, Segment};

/// A program and its debug file.
#[derive(Debug)]
struct Separate {
    /// Shared by all programs with this build id: unpacked debug information takes megabytes, and milliseconds.
    debug: Rc<ElfResolver>,
    /// The program itself, for functions that the debug file lacks.
    program: Option<ElfResolver>,
    segments: Vec<Segment>,
    /// The program's path.
    path: OsString,
}

/// Debug files that are open, by path.
type OpenFiles = RefCell<HashMap<PathBuf, Rc<ElfResolver>>>;

/// What gives programs without debug information the debug file of their build id in one of `directories`, while `is_allowed`.
pub(super) fn by_build_id(
    directories: Vec<PathBuf>,
    is_allowed: Rc<Cell<bool>>,
) -> impl Fn(ProcessMemberInfo<'_>) -> Result<Option<Box<dyn Resolve>>> {
    let open = OpenFiles::default();
    move |member| {
        let ProcessMemberType::Path(entry) = member.member_entry else { return Ok(None) };
        if !is_allowed.get() {
            return Ok(None);
        }
        let found = Separate::open(&entry.maps_file, &entry.symbolic_path, &directories, &open);
        Ok(found.map(|found| Box::new(found) as Box<dyn Resolve>))
    }
}

impl Separate {
    /// Opens the debug file of the program `file`, which the process knows as `path`.
    fn open(file: &Path, path: &Path, directories: &[PathBuf], open: &OpenFiles) -> Option<Self> {
        let about = debug_info::read(File::open(file).ok()?).filter(|about| !about.has_functions)?;
        let place = debug_info::by_build_id(&about.build_id)?;
        let of_program = |debug: &PathBuf| {
            let found = debug_info::trusted(debug).and_then(debug_info::read);
            found.is_some_and(|found| found.has_functions && found.build_id == about.build_id)
        };
        let debug = directories.iter().map(|directory| directory.join(&place)).find(of_program)?;
        let nowhere: [&Path; 0] = [];
        let known = open.borrow().get(&debug).map(Rc::clone);
        let debug = if let Some(known) = known {
            known
        } else {
            let opened = Rc::new(ElfResolver::open_with_debug_dirs(&debug, directories).ok()?);
            open.borrow_mut().insert(debug, Rc::clone(&opened));
            opened
        };
        Some(Self {
            debug,
            program: ElfResolver::open_with_debug_dirs(file, nowhere).ok(),
            segments: about.segments,
            path: path.as_os_str().to_owned(),
        })
    }
}

impl Symbolize for Separate {
    fn find_sym(&self, addr: Addr, opts: &FindSymOpts) -> Result<std::result::Result<ResolvedSym<'_>, Reason>> {
        let found = match (self.debug.find_sym(addr, opts), &self.program) {
            (Ok(Ok(found)), _) => Ok(found),
            (_, Some(program)) => program.find_sym(addr, opts)?,
            (other, None) => other?,
        };
        Ok(found.map(|found| ResolvedSym { module: Some(&self.path), ..found }))
    }
}

impl TranslateFileOffset for Separate {
    fn file_offset_to_virt_offset(&self, offset: u64) -> Result<Option<Addr>> {
        Ok(self.segments.iter().find_map(|segment| segment.address(offset)))
    }
}
