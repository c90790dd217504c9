use tracer_user::decode::{self, Record};
use tracer_user::kernel::*;
fn main() {
    env_logger::init();
    let t = std::time::Instant::now();
    let (mut k, mut r) = match load::load(load::Options { hertz: 99, log_level: 0 }) {
        Ok(x) => x,
        Err(e) => {
            eprintln!("{e}");
            std::process::exit(77)
        }
    };
    println!("load {:?}", t.elapsed());
    for a in &k.attached {
        println!("{a:?}");
    }
    println!("{:?} {:?}", selftest::run(&mut k, &mut r), t.elapsed());
    k.policy.sample_period(k.sampler.announced_period()).unwrap();
    k.policy.scope(policy::Scope::Everything).unwrap();
    let secs: u64 = std::env::args().nth(1).and_then(|s| s.parse().ok()).unwrap_or(3);
    let t = std::time::Instant::now();
    let v = std::env::args().nth(2).is_some();
    let mut n = std::collections::BTreeMap::new();
    while t.elapsed().as_secs() < secs {
        r.events(usize::MAX, &mut |b| match decode::record(b) {
            Ok(x) => {
                let name = format!("{:?}", x);
                let name = name.split([' ', '(']).next().unwrap().to_string();
                *n.entry(name).or_insert(0u64) += 1;
                if v {
                    match x {
                        Record::Op { op, head, tail } => println!(
                            "op {:?} {:?} {:?}",
                            op,
                            String::from_utf8_lossy(head),
                            String::from_utf8_lossy(tail)
                        ),
                        x => println!("{x:?}"),
                    }
                }
            }
            Err(e) => println!("ERR {e}"),
        });
        r.samples(usize::MAX, &mut |b| match decode::record(b) {
            Ok(_) => *n.entry("sample".into()).or_insert(0) += 1,
            Err(e) => println!("ERR {e}"),
        });
        r.wait(10);
    }
    println!("{n:?} lost {:?} cpu {:?}", k.lost(), k.cpu_books());
    for (a, u) in k.usage() {
        println!("{a} runs {} ns/run {} missed {}", u.runs, u.nanos.checked_div(u.runs).unwrap_or(0), u.missed);
    }
}
