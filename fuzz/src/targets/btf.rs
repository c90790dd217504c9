//! Arbitrary bytes as a kernel's type information.
use tracer_kernel::btf::Btf;

pub(crate) fn run(data: &[u8]) {
    if let Ok(btf) = Btf::parse(data.to_vec()) {
        for (of, path) in [("outer", "d.c"), ("s", "absent"), ("sock", "sk_protocol"), ("task_struct", "se.sum")] {
            let _ = btf.offset(of, path);
        }
        let _ = (btf.has_tracepoint("x"), btf.tracepoint_arguments("x"), btf.has_function("f"));
    }
}
