//! Any bytes as the program of a traced process. What reads them is blazesym's; we ask it as the agent does.
#![no_main]

use std::io::Write;

use libfuzzer_sys::fuzz_target;
use tracer_user::profiles::name_in_file;

fuzz_target!(|data: &[u8]| {
    // A new file each time: what was read of a file is kept by its inode.
    let mut file = tempfile::Builder::new().tempfile_in("/dev/shm").expect("a file in memory");
    file.write_all(data).expect("room");
    let _ = name_in_file(file.path(), &[0, 0x10, 0x1000, 0x401000, u64::MAX]);
});
