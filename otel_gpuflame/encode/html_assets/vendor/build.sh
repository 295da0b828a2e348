#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes d3-flame-graph.min.js and LICENSES.txt from the versions in package-lock.json. Needs node and npm.
# Works on a copy, so that node_modules never lies inside the package.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$here/package.json" "$here/package-lock.json" "$here/entry.js" "$work/"
cd "$work"
npm ci --ignore-scripts --no-audit --no-fund

# Licence texts travel inside the bundle, because every report contains the bundle.
{
	echo "This file bundles d3-flame-graph and the d3 modules that it needs."
	for package in node_modules/d3-* node_modules/internmap; do
		printf '\n%s\n' "----------------------------------------------------------------"
		node -p "const p = require('./$package/package.json'); p.name + ' ' + p.version + ' (' + p.license + ')'"
		if [ "$package" = node_modules/d3-flame-graph ]; then
			echo "Copyright 2018 Martin Spier. All Rights Reserved."
		fi
		if [ "$package" != node_modules/d3-array ] && cmp -s "$package/LICENSE" node_modules/d3-array/LICENSE; then
			echo "Same licence text as d3-array."
		else
			cat "$package/LICENSE"
		fi
	done
} > LICENSES.txt

# --keep-names: d3-flame-graph compares a constructor's name with "Node".
node_modules/.bin/esbuild entry.js --bundle --minify --keep-names --format=iife --target=es2020 \
	--global-name=ogfFlame --loader:.css=empty --legal-comments=none --outfile=bundle.js
{
	echo "/*!"
	cat LICENSES.txt
	echo "*/"
	cat bundle.js
} > d3-flame-graph.min.js
cp LICENSES.txt d3-flame-graph.min.js "$here/"
sha256sum d3-flame-graph.min.js
