"""What the tests of a project use: fixtures (`plugin`), and files of data sets (`data_files`)."""
