from transduce.cli.main import main

main()
