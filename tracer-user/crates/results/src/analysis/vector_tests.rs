//! References and expectations against those of the prototype that the settings were chosen with: four classes of a
//! simulated service over 150 windows, the first 60 of which are the reference. `vector.json` is its output.

use serde_json::Value;

use super::detector::Settings;
use super::series::{Series, Stat};
use super::window::{ClassWindow, ServiceWindow, Window};

const STATS: [Stat; 5] = [Stat::Cpu, Stat::Blocked, Stat::Calls, Stat::Downstream, Stat::Queue];
const CLASSES: usize = 4;

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

fn class(i: usize, row: &Value) -> ClassWindow {
    let at = |k: usize| number(&row[k]);
    ClassWindow {
        request_class: format!("c{i}"),
        count: [at(0), at(1), at(2)],
        cpu_s: [at(3), at(4), at(5)],
        cpu_s_squared: at(6),
        blocked_s: at(7),
        queue_s: at(8),
        calls: at(9),
        downstream_s: at(10),
    }
}

#[test]
fn references_are_those_of_the_prototype() {
    let vector: Value = serde_json::from_str(include_str!("vector.json")).unwrap();
    let windows = vector["windows"].as_array().unwrap();
    let settings = Settings::default();
    let mut series = Series::new(&ServiceWindow::default(), 0);
    for (t, rows) in windows.iter().enumerate() {
        let service = ServiceWindow {
            overhead_s: number(&vector["overhead"][t]),
            ambiguous: number(&vector["ambiguous"][t]),
            classes: (0..CLASSES).map(|i| class(i, &rows[i])).collect(),
            ..ServiceWindow::default()
        };
        let (cores, busy_s) = (number(&vector["cores"]), number(&vector["busy"][t]));
        let window = Window { length_s: 10.0, cores, busy_s, ..Window::default() };
        series.push(&window, Some(&service), 100, &settings);
    }
    series.learn(60, &settings);
    let near = |found: f64, wanted: f64, what: &str| {
        assert!((found - wanted).abs() <= 1e-6 * wanted.abs() + 1e-9, "{what}: {found} instead of {wanted}");
    };
    for (nth, at) in vector["at"].as_array().unwrap().iter().enumerate() {
        let at = number(at) as usize;
        for i in 0..CLASSES {
            for (k, stat) in STATS.into_iter().enumerate() {
                let wanted = &vector["expected"][nth * CLASSES + i][k];
                let what = format!("window {at}, class {i}, {stat:?}");
                near(series.cells(at)[i].of(stat).2, number(&wanted[0]), &format!("{what}: expected"));
                let [_, scale, variance, _] = series.sums(stat, at, at + 1, |j| j == i);
                near(variance, number(&wanted[1]), &format!("{what}: variance"));
                near(scale, number(&wanted[2]), &format!("{what}: scale"));
            }
        }
    }
    for (start, wanted) in vector["starts"].as_array().unwrap().iter().zip(vector["effects"].as_array().unwrap()) {
        for i in 0..CLASSES {
            for (k, stat) in STATS.into_iter().enumerate() {
                let found = series.deviation(stat, i, number(start) as usize, windows.len() - 1).effect;
                near(found, number(&wanted[i][k]), &format!("effect since {start}, class {i}, {stat:?}"));
            }
        }
    }
}
