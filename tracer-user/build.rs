fn main() {
    let out = std::env::var("OUT_DIR").unwrap();
    let o = "../target/ebpf/tracer.bpf.o";
    println!("cargo:rerun-if-changed={o}");
    let d = std::fs::read(o).unwrap_or_default();
    std::fs::write(format!("{out}/tracer.bpf.o"), d).unwrap();
}
