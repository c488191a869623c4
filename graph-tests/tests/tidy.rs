//! The invariants of `docs/architecture.md` that a machine can check.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Longest source file, in lines.
const LINES_MAX: usize = 800;
/// Largest size of all fixtures together, in bytes.
const FIXTURE_BYTES_MAX: u64 = 8 << 20;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("graph-tests lies in the workspace").to_path_buf()
}

/// Every file below the root that belongs to the project, build output aside.
fn files() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            if path.is_dir() {
                let skipped = name == "target" || (name.starts_with('.') && name != ".ci");
                if !skipped {
                    folders.push(path);
                }
            } else {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn sources() -> Vec<(String, String)> {
    let relative = |path: &Path| path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
    files()
        .iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .map(|path| (relative(path), fs::read_to_string(path).unwrap()))
        .collect()
}

/// Source lines without comments.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(number, line)| (number + 1, line.split("//").next().unwrap_or("")))
}

fn no_offenders(what: &str, offenders: Vec<String>) {
    assert!(offenders.is_empty(), "{what}:\n{}", offenders.join("\n"));
}

#[test]
fn unsafe_code_stands_in_kernels_and_where_foreign_libraries_are_met() {
    let mut offenders = Vec::new();
    for (path, text) in sources() {
        let folders = ["kernels/", "src/backend/cuda/", "ggml-plugin/", "peer-ggml/"];
        let allowed = folders.iter().any(|folder| path.starts_with(folder));
        if allowed || path == "graph-tests/tests/tidy.rs" {
            continue;
        }
        for (number, line) in code(&text) {
            let keyword =
                line.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|word| word == "unsafe");
            if keyword {
                offenders.push(format!("{path}:{number}: {}", line.trim()));
            }
        }
    }
    no_offenders("`unsafe` where no foreign library is met", offenders);
}

#[test]
fn dependencies_point_one_way() {
    let manifest = |folder: &str| fs::read_to_string(root().join(folder).join("Cargo.toml")).unwrap();
    let names = |text: &str| -> BTreeSet<String> {
        text.lines()
            .filter_map(|line| line.split(['=', '.', ' ']).next())
            .filter(|word| word.starts_with("ssmgraph") || *word == "graph-tests")
            .map(str::to_owned)
            .collect()
    };
    assert_eq!(names(&manifest("ops")), BTreeSet::new());
    assert_eq!(names(&manifest("kernels")), BTreeSet::from(["ssmgraph-ops".to_owned()]));
}

#[test]
fn files_stay_readable_in_one_sitting() {
    let offenders = sources()
        .iter()
        .map(|(path, text)| (path, text.lines().count()))
        .filter(|(_, lines)| *lines > LINES_MAX)
        .map(|(path, lines)| format!("{path}: {lines} lines"))
        .collect();
    no_offenders("files over 800 lines", offenders);
}

#[test]
fn nothing_is_unfinished_or_switched_off() {
    let words = ["todo!(", "unimplemented!(", "dbg!(", "#[ignore", "TODO", "FIXME"];
    let mut offenders = Vec::new();
    for (path, text) in sources().into_iter().filter(|(path, _)| path != "graph-tests/tests/tidy.rs") {
        for (number, line) in text.lines().enumerate() {
            if words.iter().any(|word| line.contains(word)) {
                offenders.push(format!("{path}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    no_offenders("unfinished or switched off", offenders);
}

/// Whether what follows the folder's name is a header of the kernels.
fn names_a_header(after: &str) -> bool {
    let end = after.find(['"', '\\', ' ', '\n']).unwrap_or(after.len());
    let header = after[..end].strip_prefix('/').unwrap_or_default();
    header.ends_with(".cuh") && root().join("kernels/src/shared").join(header).exists()
}

#[test]
fn no_machine_path_is_written_down() {
    // Built in parts, so that this file does not contain them.
    let words = ["work", "root", "home"].map(|folder| format!("/{folder}/"));
    // A folder beside the checkout, unlike the folder of that name that kernels include their headers from.
    let beside = ["..", "shared"].join("/");
    let mut offenders = Vec::new();
    for path in files() {
        let readable = path
            .extension()
            .is_some_and(|e| ["rs", "md", "toml", "json", "txt", "yml"].iter().any(|known| e == *known));
        let is_this = path.ends_with("graph-tests/tests/tidy.rs");
        if (readable || path.starts_with(root().join(".ci"))) && !is_this {
            let text = fs::read_to_string(&path).unwrap_or_default();
            if let Some(word) = words.iter().find(|word| text.contains(word.as_str())) {
                offenders.push(format!("{}: {word}", path.display()));
            }
            if text.split(&beside).skip(1).any(|after| !names_a_header(after)) {
                offenders.push(format!("{}: {beside}", path.display()));
            }
        }
    }
    no_offenders("machine paths", offenders);
}

/// Every module file is named by a `mod` line of its parent, so that no file silently leaves the build.
#[test]
fn every_source_file_is_part_of_the_build() {
    let all: BTreeMap<String, String> = sources().into_iter().collect();
    let mut offenders = Vec::new();
    for path in all.keys() {
        let (folder, file) = path.rsplit_once('/').unwrap_or(("", path));
        let stem = file.trim_end_matches(".rs");
        let is_root = ["lib", "main", "build"].contains(&stem);
        let is_target = ["/tests", "/examples", "/benches", "/bin", "/fuzz_targets"]
            .iter()
            .any(|kind| format!("/{folder}").ends_with(kind));
        if is_root || is_target {
            continue;
        }
        let (name, parents) = if stem == "mod" {
            let (above, name) = folder.rsplit_once('/').unwrap_or(("", folder));
            (
                name,
                [
                    format!("{above}/mod.rs"),
                    format!("{above}/lib.rs"),
                    format!("{above}/main.rs"),
                    format!("{above}.rs"),
                ],
            )
        } else {
            (
                stem,
                [
                    format!("{folder}/mod.rs"),
                    format!("{folder}/lib.rs"),
                    format!("{folder}/main.rs"),
                    format!("{folder}.rs"),
                ],
            )
        };
        let declared = parents.iter().filter_map(|parent| all.get(parent)).any(|text| {
            // The ops! list declares its modules itself.
            text.contains(&format!("mod {name};")) || text.contains(&format!("    {name}: "))
        });
        // Files next to integration tests are declared by the test that uses them.
        let beside_tests = folder.contains("/tests/")
            && all.iter().any(|(p, t)| p.contains("/tests/") && t.contains(&format!("mod {name};")));
        if !declared && !beside_tests {
            offenders.push(path.clone());
        }
    }
    no_offenders("files that no module declares", offenders);
}

#[test]
fn every_op_is_documented_in_one_form() {
    for kind in ssmgraph_ops::OpKind::ALL {
        let path = root().join("ops/src").join(format!("{}.rs", kind.module()));
        let text = fs::read_to_string(&path).unwrap();
        let header: String = text.lines().take_while(|line| line.starts_with("//!")).collect();
        assert!(header.contains("| operand"), "{} lacks an operand table", path.display());
        assert!(header.contains("Source:"), "{} names no source", path.display());
        let cases = kind.cases();
        assert!(!cases.is_empty(), "{} has no cases", kind.module());
        let names: BTreeSet<_> = cases.iter().map(|case| &case.name).collect();
        assert_eq!(names.len(), cases.len(), "{} has two cases of one name", kind.module());
    }
}

/// Words in backticks that look like paths exist, in every page that a reader starts from.
#[test]
fn paths_in_the_pages_exist() {
    let mut offenders = Vec::new();
    for page in ["README.md", "docs/architecture.md", "docs/adding-an-op.md", "docs/performance.md"] {
        let text = fs::read_to_string(root().join(page)).unwrap();
        for word in text.split('`').skip(1).step_by(2) {
            let is_path =
                word.contains('/') && word.chars().all(|c| c.is_alphanumeric() || "/._-".contains(c));
            if is_path && !root().join(word).exists() {
                offenders.push(format!("{page}: {word}"));
            }
        }
    }
    no_offenders("paths that do not exist", offenders);
}

#[test]
fn fixtures_stay_small() {
    let bytes: u64 = files()
        .iter()
        .filter(|path| path.starts_with(root().join("graph-tests/fixtures")))
        .map(|path| fs::metadata(path).unwrap().len())
        .sum();
    assert!(bytes <= FIXTURE_BYTES_MAX, "fixtures have {bytes} bytes");
}

fn packages() -> Vec<serde_json::Value> {
    let output = Command::new(env!("CARGO"))
        // Without the filter, cargo wants the packages of every platform, which a build does not download.
        .args([
            "metadata",
            "--format-version",
            "1",
            "--offline",
            "--locked",
            "--filter-platform",
            "host-tuple",
        ])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

/// A licence expression is usable if one of its alternatives asks only for licences on this list.
#[test]
fn every_dependency_has_a_usable_licence() {
    const USABLE: &[&str] = &[
        "MIT",
        "Apache-2.0",
        "Apache-2.0 WITH LLVM-exception",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "ISC",
        "Zlib",
        "Unicode-3.0",
        "Unlicense",
        "0BSD",
        "BSL-1.0",
        "CC0-1.0",
        "MIT-0",
    ];
    let usable = |expression: &str| {
        expression.replace('/', " OR ").split(" OR ").any(|alternative| {
            alternative
                .split(" AND ")
                .all(|licence| USABLE.contains(&licence.trim().trim_matches(['(', ')'])))
        })
    };
    let offenders = packages()
        .iter()
        .filter(|package| !usable(package["license"].as_str().unwrap_or("")))
        .map(|package| format!("{} {}", package["name"], package["license"]))
        .collect();
    no_offenders("licences", offenders);
}
